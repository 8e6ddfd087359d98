"""What a loss of memory costs: how often to save, full or partial recovery (``policy``, with the ``defaults`` of its
inputs), the same in words with every formula (``explain``), and the samples that partial recovery has lost (``pls``).
Plain Python: servers import it.
"""
