"""A two-way channel of pickled values between a rank's process and the coordinator."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("<Q")
_READ_BYTES = 1 << 16


class Channel:
    """One end. Values come out whole, in the order in which they were sent."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._buffer = bytearray()

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        """Two ends of one channel. Raises OSError if the system gives no more files."""
        first, second = socket.socketpair()
        return Channel(first), Channel(second)

    def fileno(self) -> int:
        """The number of its file."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def send(self, value: Any) -> None:
        """Send a value. Raises OSError if the other end is closed, and what pickle does if it cannot travel."""
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> Any:
        """Wait for a value. Raises EOFError if the other end is closed."""
        while (value := self.take()) is None:
            self.read()
        return value

    def take(self) -> Any:
        """The next value that has come whole; None if there is none."""
        size = self._size()
        if size is None:
            return None
        end = _LENGTH.size + size
        value = pickle.loads(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return value

    def read(self) -> None:
        """Wait until something comes. Raises EOFError if the other end is closed."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            raise EOFError("the other end of a channel is closed")
        self._buffer += data

    def _size(self) -> int | None:
        """The bytes of the next value; None if it has not come whole."""
        if len(self._buffer) < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._buffer)
        return size if len(self._buffer) >= _LENGTH.size + size else None
