"""Turns raw click logs into the prepared data set that ``ssmpi`` trains on, and makes synthetic logs to try it with.

Programs use ``data_prep.criteo.encode``; people use ``ssmpi-prepare``.
"""
