"""The files of records: folders, globs, tar and zip archives, opened with care.

What is in them may come from anywhere. Nothing is unpacked to the disk; a member of an archive that is a link or whose
path leaves the archive is refused, and so is what is larger than a record can be, before it is read.
"""

from __future__ import annotations

import glob
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ddpsim.simulator.records.record import RecordError

MOST_BYTES = 2**29
"""Of one file. A rank's ring of 2,000 calls with their stacks takes 5 MB."""
MOST_FILES = 2**17
_DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,
    OSError,
    ValueError,
)
"""What an archive raises that is damaged, encrypted or compressed in an unknown way."""


class Piece(NamedTuple):
    """A file, or a member of an archive."""

    path: str
    data: bytes
    is_named: bool
    """Somebody asked for this very file; what else is in a folder may be anything."""


class Source(NamedTuple):
    """A file or an archive that is there."""

    path: str
    is_named: bool
    """Somebody asked for this very file."""


def sources(paths: Sequence[str]) -> Iterator[Source]:
    """All files under the paths, unopened. Raises RecordError for a path that is not there or is refused."""
    for path in paths:
        if os.path.isdir(path):
            yield from _of_folder(path)
        elif os.path.exists(path):
            yield Source(path, is_named=True)
        elif found := sorted(glob.glob(path)):
            for each in found:
                yield from _of_folder(each) if os.path.isdir(each) else [Source(each, is_named=True)]
        else:
            raise RecordError(f"{path} is not there, expected a file, a folder, an archive or a pattern of records")


def pieces(source: Source) -> Iterator[Piece]:
    """The file, or the members of the archive. Raises RecordError for what is refused."""
    if source.is_named:
        yield from _of_file(source.path)
    else:
        yield Piece(source.path, _read(source.path), is_named=False)


def _of_folder(folder: str) -> Iterator[Source]:
    root, count = os.path.realpath(folder), 0
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(parent, name)
            if not os.path.realpath(path).startswith(os.path.join(root, "")) or not stat.S_ISREG(_mode(path)):
                continue  # a link that leaves the folder, a socket, a pipe
            count += 1
            if count > MOST_FILES:
                raise RecordError(f"{folder} has more than {MOST_FILES} files, expected a folder of records")
            yield Source(path, is_named=False)


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode
    except OSError:
        return 0


def _of_file(path: str) -> Iterator[Piece]:
    if not stat.S_ISREG(_mode(path)):
        raise RecordError(f"{path} is no regular file, expected a record, a folder or an archive of records")
    try:
        with open(path, "rb") as file:
            head = file.read(4)
        if head[:2] == b"PK":
            yield from _of_zip(path)
        elif head[:1] not in (b"\x80", b"{", b"V") and tarfile.is_tarfile(path):
            yield from _of_tar(path)
        else:
            yield Piece(path, _read(path), is_named=True)
    except RecordError:
        raise
    except _DAMAGED as error:
        raise RecordError(f"{path} cannot be read ({' '.join(str(error).split()) or type(error).__name__})") from error


def _of_zip(path: str) -> Iterator[Piece]:
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
        _check_count(path, len(members))
        for member in members:
            _check_member(path, member.filename, member.file_size, is_link=stat.S_ISLNK(member.external_attr >> 16))
            with archive.open(member) as file:
                yield Piece(f"{path}/{member.filename}", _bounded(file.read(MOST_BYTES + 1), path), is_named=False)


def _of_tar(path: str) -> Iterator[Piece]:
    with tarfile.open(path, "r|*") as archive:  # a stream: nothing is read twice
        for count, member in enumerate(archive):
            _check_count(path, count)
            if member.isdir():
                continue
            _check_member(
                path, member.name, member.size, is_link=member.issym() or member.islnk() or not member.isreg()
            )
            file = archive.extractfile(member)
            assert file is not None
            yield Piece(f"{path}/{member.name}", _bounded(file.read(MOST_BYTES + 1), path), is_named=False)


def _check_count(path: str, count: int) -> None:
    if count > MOST_FILES:
        raise RecordError(f"{path} has more than {MOST_FILES} members, expected an archive of records")


def _check_member(archive: str, name: str, size: int, *, is_link: bool) -> None:
    parts = name.replace("\\", "/").split("/")
    if is_link:
        raise RecordError(f"{archive} has the link or device {name!r}, expected plain files")
    if name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
        raise RecordError(f"{archive} has a member {name!r}, whose path leaves the archive")
    if size > MOST_BYTES:
        raise RecordError(f"{archive} has a member {name!r} of {size} bytes, expected at most {MOST_BYTES}")


def _bounded(data: bytes, path: str) -> bytes:
    if len(data) > MOST_BYTES:
        raise RecordError(f"{path} has more than {MOST_BYTES} bytes in one file, expected a record")
    return data


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return _bounded(file.read(MOST_BYTES + 1), path)
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error.strerror or error})") from error
