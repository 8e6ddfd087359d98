"""Prepared data: the shard format (``schema``), its reader, and the dispatcher of row blocks to trainers."""
