"""Fuzzing campaigns: drawn scenarios in numbered batches, on one process or many, and a corpus of what failed.

`strategies/` draws scenarios, `shrinking/` makes a failing one simpler.
"""

from pathlib import Path

CORPUS = Path(".ddpsim/corpus")
"""Where failures are kept unless told, in the working directory."""
