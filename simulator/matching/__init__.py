"""Matching: which calls of the ranks belong together, and whether these agree. Pure: no torch, no thread."""
