"""Synthetic raw text with a teacher, so that the best possible score is known."""
