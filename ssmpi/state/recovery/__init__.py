"""Recovery from a loss of memory. ``restart`` tells it from top to bottom: how a job resumes after ranks were killed,
from the memory they have left (``previous_memory``, ``warm_state``), with what was lost made anew (``lost_servers``,
``lost_trainers``), or from a checkpoint (``checkpoints``). ``state`` is what a run notes about its starts, ``start``
how a job starts, ``row_saves`` when rows are saved. In plain Python: what a loss costs, how often to save, full or
partial recovery (``policy`` and its ``inputs``, ``decision``), and the samples lost (``ledger``). Servers import it: no
torch.
"""
