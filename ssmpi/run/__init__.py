"""One run: what was asked for, its folder and lock, how it starts and resumes."""
