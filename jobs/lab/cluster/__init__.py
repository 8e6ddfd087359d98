"""``python -m jobs.lab cluster``: algorithms and groups on an emulated cluster (``CLUSTER.md``).

Decided: EPS is linear up to 20 trainers with rounds in the background; in the foreground the sync PSs' links limit it.
Groups of two have up to 1.8 times the EPS of as many trainers alone; sparse edges gain 1.1 to 2.5 times, by how long a
dense edge's bytes take. Last run at bf51829 (``--group``, flat training), 2b511658 (``--edges``).
"""
