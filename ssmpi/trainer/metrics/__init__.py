"""What the first trainer writes during a run: metrics, results, progress on a terminal."""
