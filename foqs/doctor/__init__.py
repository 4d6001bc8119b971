"""Finds the faults of a deployment and their remedies, without changing it. `verdict` judges one that runs."""
