"""ssmpi trains click-through-rate models on CPU clusters as one MPI job. Read ``train.py`` first."""

__version__ = "0.2.0.dev0"
