"""Fuzzing campaigns: drawn scenarios in numbered batches, on one process or many, and a corpus of what failed."""
