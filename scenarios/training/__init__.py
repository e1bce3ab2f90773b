"""Trainings as values: what is trained on what, how ranks run it, and what must come of it by plain training.

`models/` has the networks.
"""
