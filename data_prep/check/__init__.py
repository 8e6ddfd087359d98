"""Looking at prepared data: inspect, verify, baseline."""
