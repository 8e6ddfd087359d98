"""Everything that saves and loads: the checkpoint ``manager``, what a trainer puts into a checkpoint
(``trainer_state``), finished models (``model_saver``, ``model_files``), the rows of a PS (``arena_writer``) and those
saved while training continues (``rows``), the folder of committed checkpoints (``store``), files
with checksums (``files``), and every operation on the disk (``disk``).
"""
