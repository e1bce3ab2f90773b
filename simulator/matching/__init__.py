"""Matching: which calls meet, and whether they agree. Pure: no torch, no thread."""
