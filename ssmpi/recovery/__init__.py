"""What a loss of memory costs. Before it: whether and how often to save rows (``policy`` and its ``inputs``), with
every formula (``explain``). After it: warm, partial or full recovery (``after_loss``), and the samples lost
(``ledger``). Plain Python: servers import it.
"""
