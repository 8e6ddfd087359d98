"""``ssmpi bench``: how fast this program is beside what it could be and what others are (start at
``throughput.throughput``), how algorithms scale over an emulated cluster (``cluster.cluster``), what a job of many
ranks costs (``scale``), what runs over a grid of settings come to (``study.study``), and what a run of several trainers
comes to when time is given (``lockstep.lockstep``). ``harness`` is what the first two measure with.
"""
