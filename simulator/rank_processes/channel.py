"""Two-way connections between processes that transport pickled values: a stream, and packets with files."""

import pickle
import select
import socket
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

_End = TypeVar("_End", bound="_ConnectionEnd")

_LENGTH = struct.Struct("<Q")
_READ_BYTES = 1 << 16
_PACKET_BYTES = 1 << 17
_MOST_FILES = 253
"""The most open files that the operating system sends with one packet."""


class _HasFile(Protocol):
    def fileno(self) -> int: ...


def readable_files(files: Sequence[int | _HasFile], seconds: float | None = None) -> set[int]:
    """Wait until some files can be read, and return the numbers of these; none after so many seconds.

    `select.select` does the same for file numbers below 1024, which a few hundred ranks exceed.
    """
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return {number for number, _ in poll.poll(None if seconds is None else seconds * 1000)}


class _ConnectionEnd:
    _kind = socket.SOCK_STREAM

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @classmethod
    def pair(cls: type[_End]) -> tuple[_End, _End]:
        """Return the two ends of one connection. Raises OSError if the system has no file descriptors left."""
        first, second = socket.socketpair(socket.AF_UNIX, cls._kind)
        return cls(first), cls(second)

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


class MessageChannel(_ConnectionEnd):
    """One end of a stream between a rank's process and the coordinator. Values arrive in the order of sending."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__(end)
        self._buffer = bytearray()

    def send(self, value: Any) -> None:
        """Send a value. Raises OSError if the other end is closed, and pickle's error if the value does not pickle."""
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> Any:
        """Wait for a value. Raises EOFError if the other end is closed."""
        while (value := self.take_message()) is None:
            self.read_bytes()
        return value

    def take_message(self) -> Any:
        """Return the next value that has arrived completely; None if there is none."""
        if len(self._buffer) < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._buffer)
        end = _LENGTH.size + size
        if len(self._buffer) < end:
            return None
        value = pickle.loads(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return value

    def read_bytes(self) -> None:
        """Wait until bytes arrive, and keep them for `take_message`. Raises EOFError if the other end is closed."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            raise EOFError("the other end of a channel is closed")
        self._buffer += data


class PacketConnection(_ConnectionEnd):
    """One end of a connection between the coordinator and a launcher or a server; messages may carry open files."""

    _kind = socket.SOCK_SEQPACKET

    def send(self, message: NamedTuple, files: Sequence[int] = ()) -> None:
        """Send a message with files."""
        socket.send_fds(self._socket, [pickle.dumps(message)], files)

    def receive(self) -> tuple[Any, list[int]]:
        """Wait for a message, and return it with its files; the message is None if the other end is closed."""
        data, files, _, _ = socket.recv_fds(self._socket, _PACKET_BYTES, _MOST_FILES)
        return (pickle.loads(data) if data else None), list(files)
