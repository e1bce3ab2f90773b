"""Open the files of records safely: folders, globs, tar and zip archives, none of which is trusted.

Nothing is unpacked to the disk. Members of an archive that are links or have a path outside the archive are refused, as
are files larger than a record can be.
"""

import glob
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ddpsim.simulator.records.rank_record import RecordError
from ddpsim.simulator.records.record_texts import printable_text

MOST_BYTES = 2**29
"""The largest size of a file. A rank's ring of 2,000 calls with their stacks takes 5 MB."""
MOST_FILES = 2**17
_ARCHIVE_ERRORS = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
_DAMAGED = (*_ARCHIVE_ERRORS, EOFError, RuntimeError, OSError, ValueError)
"""The errors that damaged, encrypted or unknown archives raise."""


class FilePiece(NamedTuple):
    """The contents of a file, or of a member of an archive."""

    path: str
    data: bytes
    is_named: bool
    """True if the user named this file. Other files, found in a folder, may be no records."""


class CutOffArchive(NamedTuple):
    """The rest of an archive that cannot be read, because the archive is cut off or damaged."""

    path: str
    last: str
    """The name of the last complete member of the archive."""
    why: str

    def __str__(self) -> str:
        return f"the part after {self.last} in {self.path}, which is incomplete ({self.why})"


class RecordSource(NamedTuple):
    """An existing file or archive that may contain records."""

    path: str
    is_named: bool
    """True if the user named this file."""


def find_sources(paths: Sequence[str]) -> Iterator[RecordSource]:
    """Yield all files under the paths, without opening them. Raises RecordError for a missing or refused path."""
    for path in paths:
        found = [path] if os.path.exists(path) else sorted(glob.glob(path))
        if not found:
            raise RecordError(f"{path} does not exist, expected a file, a folder, an archive or a pattern: correct it")
        for each in found:
            yield from _sources_in_folder(each) if os.path.isdir(each) else [RecordSource(each, is_named=True)]


def read_pieces(source: RecordSource) -> Iterator[FilePiece | CutOffArchive]:
    """Yield the contents of a file, or of the complete members of an archive. Raises RecordError for refused files."""
    if source.is_named:
        yield from _pieces_of_file(source.path)
    else:
        yield FilePiece(source.path, _read_file(source.path), is_named=False)


def _sources_in_folder(folder: str) -> Iterator[RecordSource]:
    root, count = os.path.realpath(folder), 0
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(parent, name)
            if not os.path.realpath(path).startswith(os.path.join(root, "")) or not stat.S_ISREG(_file_mode(path)):
                continue  # a link that leaves the folder, a socket, a pipe
            count += 1
            if count > MOST_FILES:
                raise RecordError(f"{folder} has more than {MOST_FILES} files, expected records: name a smaller folder")
            yield RecordSource(path, is_named=False)


def _file_mode(path: str) -> int:
    try:
        return os.stat(path).st_mode
    except OSError:
        return 0


def _pieces_of_file(path: str) -> Iterator[FilePiece | CutOffArchive]:
    """Yield the contents of a plain file, or of the members of a zip or tar archive."""
    if not stat.S_ISREG(_file_mode(path)):
        raise RecordError(f"{path} is not a regular file, expected a record, a folder or an archive: name one")
    try:
        with open(path, "rb") as file:
            head = file.read(4)
        if head[:2] == b"PK":
            members = _members_of_zip(path) if zipfile.is_zipfile(path) else _members_of_cut_zip(path)
            yield from _pieces_until_cut(path, members)
        elif head[:1] not in (b"\x80", b"{", b"V") and tarfile.is_tarfile(path):
            yield from _pieces_until_cut(path, _members_of_tar(path))
        else:
            yield FilePiece(path, _read_file(path), is_named=True)
    except RecordError:
        raise
    except _DAMAGED as error:
        reason = _reason_text(error)
        raise RecordError(f"{path} cannot be read ({reason}), expected a record or archive: copy it again") from error


def _pieces_until_cut(path: str, members: Iterator[tuple[str, bytes]]) -> Iterator[FilePiece | CutOffArchive]:
    """Yield the members of an archive until it cannot be read any further. Raises an error if no member is complete."""
    last = ""
    try:
        for name, data in members:
            yield FilePiece(f"{path}/{name}", _check_size(data, path), is_named=False)
            last = name
    except RecordError:
        raise
    except _DAMAGED as error:
        if not last:
            raise
        yield CutOffArchive(path, printable_text(last), _reason_text(error))


def _reason_text(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _members_of_zip(path: str) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
        _check_member_count(path, len(members))
        for member in members:
            _check_member(path, member.filename, member.file_size, is_link=stat.S_ISLNK(member.external_attr >> 16))
            with archive.open(member) as file:
                yield member.filename, file.read(MOST_BYTES + 1)


def _members_of_tar(path: str) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path, "r|*") as archive:  # a stream reads nothing twice
        for count, member in enumerate(archive):
            _check_member_count(path, count)
            if member.isdir():
                continue
            _check_member(path, member.name, member.size, is_link=not member.isreg())
            file = archive.extractfile(member)
            assert file is not None
            yield member.name, file.read(MOST_BYTES + 1)
        assert archive.fileobj is not None
        if archive.fileobj.tell() - archive.offset < tarfile.BLOCKSIZE:  # tarfile accepts this as an end, too
            raise tarfile.ReadError("its end is missing")


def _members_of_cut_zip(path: str) -> Iterator[tuple[str, bytes]]:
    """Yield the members of a zip archive that lacks the directory at its end, by the header of each member."""
    with open(path, "rb") as file:
        for count in range(MOST_FILES + 1):
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size or not head.startswith(b"PK\x03\x04"):
                break
            yield _read_zip_member(path, file, head)
            _check_member_count(path, count + 1)
    raise zipfile.BadZipFile("its directory is missing")


_HEAD = struct.Struct("<4s2xHH4xIIIHH")
"""The header of a zip member: signature, flags, method, checksum, two sizes, lengths of name and extra."""
_SIZES_FOLLOW, _ENCRYPTED = 8, 1


def _read_zip_member(path: str, file: BinaryIO, head: bytes) -> tuple[str, bytes]:
    """Return the contents and name of a zip member. If the member is incomplete, raise as for a damaged archive."""
    _, flags, method, checksum, packed, size, name_length, extra_length = _HEAD.unpack(head)
    name = file.read(name_length).decode("utf-8", "replace")
    file.read(extra_length)
    _check_member(path, name, size, is_link=False)
    if flags & (_ENCRYPTED | _SIZES_FOLLOW) or method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise zipfile.BadZipFile(f"its directory is missing, and {printable_text(name)} cannot be read without it")
    data = file.read(min(packed, MOST_BYTES + 1))
    if method == zipfile.ZIP_DEFLATED:
        data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, MOST_BYTES + 1)
    if len(data) != size or zlib.crc32(data) != checksum:
        raise zipfile.BadZipFile(f"{printable_text(name)} is cut short")
    return name, data


def _check_member_count(path: str, count: int) -> None:
    if count > MOST_FILES:
        raise RecordError(f"{path} has more than {MOST_FILES} members, expected records: make a smaller archive")


def _check_member(archive: str, name: str, size: int, *, is_link: bool) -> None:
    parts = name.replace("\\", "/").split("/")
    if is_link:
        raise RecordError(f"{archive} has the link or device {name!r}, expected plain files: remove it")
    if name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
        raise RecordError(f"{archive} has a member {name!r}, expected a path inside the archive: rename it")
    if size > MOST_BYTES:
        raise RecordError(f"{archive} has a member {name!r} of {size} bytes, expected at most {MOST_BYTES}: remove it")


def _check_size(data: bytes, path: str) -> bytes:
    if len(data) > MOST_BYTES:
        raise RecordError(
            f"{path} has a file of more than {MOST_BYTES} bytes, expected the record of a rank: leave that file out"
        )
    return data


def _read_file(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return _check_size(file.read(MOST_BYTES + 1), path)
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error.strerror or error}): correct its permissions") from error
