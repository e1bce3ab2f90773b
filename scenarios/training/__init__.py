"""Declared trainings: values that say what is trained on which data and how ranks run the training.

The oracle computes the correct result by training on one process. `models/` has the networks.
"""
