"""What the ranks of a comparison write in the working folder, and a folder without it for the reference.

The reference must not go on from a checkpoint that the ranks made. So it runs in a folder of links to what is in the
working folder, which leaves out what the ranks made. Refused: to move it away meanwhile, as another process may write
there; and a copy of the folder, as a data set may lie in it.
"""

import os
import shutil
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory
from typing import NamedTuple

from ddpsim.simulator.wording import join_names

_MOST_FILES = 20_000
_NOT_SEEN = (".git", "__pycache__")

Times = Mapping[str, Mapping[str, int]]
"""By folder, as a path from the working folder, when each file and folder in it was last written."""


class Writes(NamedTuple):
    """What was written below the working folder, as paths from there."""

    made: frozenset[str] = frozenset()
    """New files and folders, of the ranks or of any other process."""
    changed: frozenset[str] = frozenset()
    """Files that were there before."""
    folders: frozenset[str] = frozenset()
    """The folders that were there before, and in which or below which something was made, changed or removed."""

    def notes(self) -> Iterator[str]:
        """Yield lines on what the reference did not find, and on what it found as the ranks left it."""
        if self.made:
            yield f"the reference did not find {join_names(sorted(self.made), 3)}, made while the ranks ran"
        if self.changed:
            yield f"the reference found {join_names(sorted(self.changed), 3)} as changed while the ranks ran"


def times_of_files() -> Times:
    """Return when files below the working folder were written: of about 20,000, those in the outer folders first."""
    found: dict[str, dict[str, int]] = {}
    folders, count = deque([""]), 0
    while folders and count < _MOST_FILES:
        folder = folders.popleft()
        own = found[folder] = {}
        with suppress(OSError), os.scandir(folder or ".") as entries:
            for each in entries:
                if each.name in _NOT_SEEN:
                    continue
                with suppress(FileNotFoundError):  # it may be removed meanwhile
                    own[each.name] = each.stat(follow_symlinks=False).st_mtime_ns
                    if each.is_dir(follow_symlinks=False):
                        folders.append(os.path.join(folder, each.name))
        count += len(own)
    return found


def writes_since(before: Times) -> Writes:
    """Return what was written below the working folder since its times were taken."""
    made, changed, folders = set(), set(), set[str]()
    after = times_of_files()
    for folder in before.keys() & after.keys():
        for name, time in after[folder].items():
            path = os.path.join(folder, name)
            if name not in before[folder]:
                made.add(path)
            elif time != before[folder][name] and path in after:
                folders.add(path)
            elif time != before[folder][name]:
                changed.add(path)
    for path in (*made, *changed, *folders):
        while path := os.path.dirname(path):
            folders.add(path)
    return Writes(frozenset(made), frozenset(changed), frozenset(folders))


@contextmanager
def working_folder_without(writes: Writes) -> Iterator[None]:
    """Work in a folder that has links to what is in the working folder, but nothing that was made there.

    It has copies of the changed files, so that those of the ranks stay as they are.
    """
    if not writes.made and not writes.changed:
        yield
        return
    home = os.getcwd()
    with TemporaryDirectory(prefix="ddpsim-compare-", ignore_cleanup_errors=True) as other:
        for folder in ("", *sorted(writes.folders)):
            os.makedirs(os.path.join(other, folder), exist_ok=True)
            for name in os.listdir(os.path.join(home, folder)):
                path = os.path.join(folder, name)
                source, link = (os.path.join(root, path) for root in (home, other))
                if path in writes.changed:
                    shutil.copy2(source, link, follow_symlinks=False)
                elif path not in writes.made and path not in writes.folders:
                    os.symlink(source, link)
        os.chdir(other)
        try:
            yield
        finally:
            os.chdir(home)
