"""Recovery from a loss of memory. ``restart`` tells it from top to bottom: how a job resumes after ranks were killed,
from the memory they have left (``left_memory``, ``surviving``), with what was lost made anew (``rebuild``,
``replicas``), or from a checkpoint (``checkpoints``). ``state`` is what a run notes about its starts, ``start`` how a
job starts, ``row_saves`` when rows are saved. In plain Python: what a loss costs, how often to save, full or partial
recovery (``policy`` and its ``inputs``, ``decision``), and the samples lost (``ledger``). Servers import it: no torch.
"""
