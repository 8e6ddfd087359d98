"""``ssmpi bench``: how fast this program is beside what it could be and what others are (start at
``throughput.throughput``), how algorithms scale over an emulated cluster (``cluster.cluster``), what a job of many
ranks costs (``scale``), and what runs over a grid of settings come to (``study.study``). ``harness`` is what the first
two measure with.
"""
