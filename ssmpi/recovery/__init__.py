"""Recovery from a loss of memory. What it costs: how often to save, full or partial recovery (``policy`` and its
``inputs``, ``choice``), an explanation with every formula (``explain``), and the samples lost (``ledger``), in plain
Python. What a run notes about its starts (``state``), how a job starts (``start``), what of the trainers has survived
(``surviving``), how lost replicas are restored (``replicas``), and when rows are saved (``row_saves``). Servers import
it: no torch.
"""
