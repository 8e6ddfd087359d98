"""What each kind of rank does: trainer, embedding PS, sync PS. Data, embedding, model and sync meet here. Below:
``metrics``, what a run writes while it lasts.
"""
