"""What a loss of memory costs: how often to save, full or partial recovery (``policy``, with the ``defaults`` of its
inputs), an explanation with every formula (``explain``), and the samples lost by partial recovery (``pls``). Plain
Python: servers import it.
"""
