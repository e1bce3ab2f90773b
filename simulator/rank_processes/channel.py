"""A two-way channel of pickled values between a rank's process and the coordinator."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("<Q")
_READ_BYTES = 1 << 16


class Channel:
    """One end of a channel. Values arrive whole, in the order in which they were sent."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._buffer = bytearray()

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        """Return the two ends of one channel. Raises OSError if the system has no file descriptors left."""
        first, second = socket.socketpair()
        return Channel(first), Channel(second)

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def send(self, value: Any) -> None:
        """Send a value. Raises OSError if the other end is closed, and pickle's error if the value does not pickle."""
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> Any:
        """Wait for a value. Raises EOFError if the other end is closed."""
        while (value := self.take()) is None:
            self.read()
        return value

    def take(self) -> Any:
        """Return the next value that has arrived whole; None if there is none."""
        size = self._size()
        if size is None:
            return None
        end = _LENGTH.size + size
        value = pickle.loads(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return value

    def read(self) -> None:
        """Wait until bytes arrive. Raises EOFError if the other end is closed."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            raise EOFError("the other end of a channel is closed")
        self._buffer += data

    def _size(self) -> int | None:
        """Return the size in bytes of the next value; None if it has not arrived whole."""
        if len(self._buffer) < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._buffer)
        return size if len(self._buffer) >= _LENGTH.size + size else None
