"""Trainings as values: what is trained on which data, how ranks run it, and the result that plain training gives.

`models/` has the networks.
"""
