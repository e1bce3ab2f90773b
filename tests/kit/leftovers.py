"""What a run may not leave behind in its process. That something of before is gone is fine: others have left it."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def children() -> list[str]:
    """The processes that this one started and has not waited for, by number."""
    numbers = []
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has just ended; its children are another's
            numbers += path.read_text().split()
    return sorted(numbers)


def open_files() -> dict[str, str]:
    """What the open files of this process are, by number."""
    files = {}
    for number in os.listdir("/proc/self/fd"):  # the listing is one of them, and closed by now
        with suppress(OSError):
            files[number] = os.readlink(f"/proc/self/fd/{number}")
    return files


def new_files(before: dict[str, str]) -> dict[str, str]:
    """The open files that were not among those of before."""
    return {number: file for number, file in open_files().items() if before.get(number) != file}


_ENDING_SECONDS = 10.0
"""A thread that has done its work may need this long to be gone on a busy machine."""


@contextmanager
def no_thread_is_left() -> Iterator[None]:
    """Fail where the block leaves a thread that was not there before it."""
    before = threading.enumerate()
    yield
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(_ENDING_SECONDS)
    assert [thread for thread in left if thread.is_alive()] == []
