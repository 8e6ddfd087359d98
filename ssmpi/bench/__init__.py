"""``ssmpi bench``: speed compared with upper bounds and other programs (start at ``throughput.throughput``), scaling of
algorithms on an emulated cluster (``cluster``), start and end of jobs with many ranks (``scale``), the cost of codecs
(``compression``), losses of embedding PSs (``recovery.recovery``), grids of settings (``study.study``), and runs of
several trainers in deterministic lockstep (``lockstep.lockstep``; studies of them: ``lockstep.study``). They share
``options`` and ``harness``, and nothing else.
"""
