"""One run: its request, folder and lock, how it starts and resumes."""
