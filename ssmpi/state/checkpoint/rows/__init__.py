"""The rows of one embedding PS that are saved while training continues, for partial recovery: the ``records`` of its
file, the ``store`` that writes and reads it, the ``saver`` that knows when, and how the ``newest`` save of each row is
loaded.
"""
