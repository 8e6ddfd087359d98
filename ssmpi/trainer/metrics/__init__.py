"""What the first trainer writes while a run lasts: metrics, results, its progress on a terminal."""
