"""torch's own reader of flight recorder dumps, `torch.distributed.flight_recorder.fr_trace`, and what it tells."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def told_by_torch(folder: Path, prefix: str = "rank_") -> str:
    """What it tells of the dumps in a folder, `prefix` and the rank each. Raises whatever it raises."""
    from torch.distributed.flight_recorder.fr_trace import main

    with _logged() as lines:
        try:
            main([str(folder), "-p", prefix])
        finally:
            gc.enable()  # it switches it off, for good
    return "\n".join(lines)


@contextmanager
def _logged() -> Iterator[list[str]]:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("Flight Recorder")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
