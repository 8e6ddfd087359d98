"""The state of a run. Here: its request, folder and lock, and how it starts and resumes. Below: ``recovery``, what
follows a loss of memory; ``checkpoint``, saving and loading.
"""
