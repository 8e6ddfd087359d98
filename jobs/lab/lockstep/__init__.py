"""Training in lockstep: several trainers in one process, with a result that depends on the seeds alone.
``python -m jobs.lab lockstep`` repeats a run, or pairs cases by seeds; ``python -m jobs.lab equivalence`` runs a study.

Decided: where the noise of small runs comes from (NOISE.md); a warm-up for Adagrad's first steps; shadow rounds come
within 0.3 % of NE of foreground ones, over EASGD, MA and BMUF together; trainers x threads is undecided
(EQUIVALENCE.md). Last run at 6f82c11 (``lockstep``), e7008666a85b (``equivalence``).
"""
