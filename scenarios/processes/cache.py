"""The folder of torch's compiler, which comes to be as soon as an optimizer or DistributedDataParallel loads it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_NAME = "TORCHINDUCTOR_CACHE_DIR"


@contextmanager
def own_cache() -> Iterator[None]:
    """Give this process, and those that it starts, one that goes with the block, unless the user has named one.

    Otherwise torch makes it among the temporary files of all programs, and leaves it there.
    """
    if _NAME in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="ddpsim-", ignore_cleanup_errors=True) as folder:
        os.environ[_NAME] = folder
        try:
            yield
        finally:
            os.environ.pop(_NAME, None)
