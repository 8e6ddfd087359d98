"""What a loss of memory costs: how often to save, full or partial recovery (``policy`` and its ``inputs``), an
explanation with every formula (``explain``), and the samples lost by partial recovery (``ledger``). Plain Python:
servers import it.
"""
