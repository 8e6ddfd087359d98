"""What a loss of memory costs: how often to save, full or partial recovery (``policy``, with the ``defaults`` of its
inputs), and the samples that partial recovery has lost (``pls``). Plain Python: servers import it.
"""
