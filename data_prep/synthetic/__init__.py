"""Synthetic raw text drawn from a teacher, so the best possible score is known."""
