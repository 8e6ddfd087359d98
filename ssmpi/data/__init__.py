"""Prepared data: the shard format (``schema``), its reader and the hand-out of row blocks to trainers."""
