"""Folders of which each simulated host has its own copy.

A rank's process enters a mount namespace of its own and mounts its host's copy over the folder. So every way of opening
a file leads to the copy: Python's, that of native code, and that of processes which the rank starts. The first host has
the folder itself; the copies of the others are made when a run begins, and removed at its end.
"""

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.hosts import host_name

_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000

Disks = Mapping[str, str]
"""For the ranks of a host, the folder to mount over each private folder, by the absolute path of that."""


@contextmanager
def make_private_disks(folders: Sequence[str], nodes: int) -> Iterator[tuple[Disks, ...]]:
    """Yield the disks of each host and one that no host has, in a `with` block at whose end the copies are removed; ()
    without folders.

    Raises UsageError where a folder does not exist, or where the system lets no process mount a folder for itself.
    """
    if not folders:
        yield ()
        return
    paths = [os.path.realpath(folder) for folder in folders]
    for folder, path in zip(folders, paths, strict=True):
        if not os.path.isdir(path):
            raise UsageError(f"there is no folder {folder!r} for --private-disk, expected one: create it, if empty")
        if path == os.path.realpath(os.sep):
            raise UsageError("--private-disk is the root folder, expected one in which the program writes: name that")
    _check_support()
    with tempfile.TemporaryDirectory(prefix="ddpsim-disks-") as root:
        disks: list[Disks] = [{}]
        for number in range(1, nodes + 1):
            copies = {path: str(Path(root, host_name(number), str(index))) for index, path in enumerate(paths)}
            for path, copy in copies.items():
                shutil.copytree(path, copy, symlinks=True)
            disks.append(copies)
        yield tuple(disks)


def renew_disk(disks: Sequence[Disks], host: int) -> None:
    """Make the disk of a host as new, from the one that no host has."""
    for path, spare in (disks[-1] if disks else {}).items():
        own = disks[host].get(path, path)
        for entry in os.scandir(own):
            shutil.rmtree(entry) if entry.is_dir(follow_symlinks=False) else os.remove(entry)
        shutil.copytree(spare, own, symlinks=True, dirs_exist_ok=True)


def mount_disks(disks: Disks) -> None:
    """Mount the folders for this process and those that it starts. Raises OSError if the system refuses."""
    if not disks:
        return
    here = os.getcwd()
    _enter_namespace()
    for path, copy in disks.items():
        _call("mount", copy.encode(), path.encode(), None, ctypes.c_ulong(_MS_BIND), None)
    os.chdir(here)  # else the working folder would still be the one below the mount


def path_outside(disks: Disks, file: str) -> str:
    """Return the path that a file of a rank has outside its namespace, which no file of another host has."""
    inside = next((path for path in disks if file == path or file.startswith(path + os.sep)), None)
    return file if inside is None else disks[inside] + file[len(inside) :]


def _enter_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    _call("mount", None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None)


def _call(name: str, *arguments: Any) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _check_support() -> None:
    """Raise UsageError if a process cannot mount folders for itself; a fork tries it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            _enter_namespace()
        except OSError as error:
            os.write(writing, str(error.strerror).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        problem = pipe.read().decode()
    os.waitpid(pid, 0)
    if problem:
        raise UsageError(
            f"--private-disk needs user namespaces, which this system refuses ({problem}), expected a system that has "
            "them: leave it out, or let the program name folders by the host"
        )
