"""``ssmpi bench``: how fast ssmpi is compared with its upper bounds and with other programs (start at
``throughput.throughput``), how algorithms scale over an emulated cluster (``cluster.cluster``), what it costs to start
and end a job of many ranks (``scale``), the results of a grid of settings (``study.study``), and of runs of several
trainers in deterministic lockstep (``lockstep.lockstep``). The first two measure with ``harness``.
"""
