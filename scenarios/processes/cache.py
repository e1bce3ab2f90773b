"""The folder of torch's compiler, which comes to be as soon as an optimizer or DistributedDataParallel loads it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """Let this process, and those that it starts in the block, have a variable, unless the user has set it."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)


@contextmanager
def own_cache() -> Iterator[None]:
    """Give this process, and those that it starts, one that goes with the block, unless the user has named one.

    Otherwise torch makes it among the temporary files of all programs, and leaves it there.
    """
    folders = tempfile.TemporaryDirectory(prefix="ddpsim-", ignore_cleanup_errors=True)
    with folders as folder, variable("TORCHINDUCTOR_CACHE_DIR", folder):
        yield
