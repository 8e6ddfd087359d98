"""Turns raw click logs into the prepared data set that ``ssmpi`` trains on, and makes synthetic logs to try it with.

``data_prep.criteo.encode`` is the way in for programs; ``ssmpi-prepare`` for people.
"""
