"""What survives the end of a job: when to save (``policy``), files with checksums (``files``), the folder of committed
checkpoints (``store``), and how often a job was started in vain (``attempts``).
"""
