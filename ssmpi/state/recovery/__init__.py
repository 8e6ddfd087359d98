"""Recovery from a loss of memory. ``restart`` tells it from top to bottom: how a job resumes after ranks were killed,
from the memory they have left (``start``, ``warm_state``), with the rows of lost embedding PSs loaded anew
(``lost_servers``), or from a checkpoint. ``run_record`` is what a run records about its starts, ``start`` also how a
job starts, ``row_saves`` when rows are saved. In plain Python: what a loss costs and how often to save (``policy``),
full or partial recovery (``decision``), and the samples lost (``ledger``). Servers import it: no torch.
"""
