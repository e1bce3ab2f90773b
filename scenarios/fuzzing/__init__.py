"""Fuzzing campaigns: random scenarios in numbered batches, in one process or many, and a corpus of failures.

`strategies/` generates scenarios, `shrinking/` makes a failing one simpler.
"""

from pathlib import Path

CORPUS = Path(".ddpsim/corpus")
"""The default folder for failures, in the working directory."""
