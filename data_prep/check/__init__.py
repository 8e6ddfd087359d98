"""Checks of prepared data: inspect, verify, baseline."""
