"""``ssmpi bench``: what a user measures on a host of his own.

Four commands: ``throughput`` (ssmpi beside upper bounds and plain PyTorch), ``preparation``, ``tables`` and
``compression``; their options are in ``options``. The other files run measured jobs: ``jobs`` starts them, ``rank`` is
one of their processes, ``windows`` reads the clock.
"""
