"""Embedding tables: who holds which rows (``placement``), the rows themselves (``table``), the two ends of pull and
push (``client`` in a trainer, ``server`` in an embedding PS), and which rows to save first (``trackers``).
"""
