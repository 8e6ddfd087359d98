"""The three roles of a rank: trainer, embedding PS, sync PS. Data, embedding, model and sync meet here. Below:
``metrics``, the files that a run writes while it trains.
"""
