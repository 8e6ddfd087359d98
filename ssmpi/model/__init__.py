"""The dense part of a CTR model, its replica in one flat vector, and the optimizers that step it."""
