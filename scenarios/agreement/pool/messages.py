"""How pool, server and ranks talk: pickled values over Unix sockets, open descriptors along with them."""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("!Q")
MOST_DESCRIPTORS = 250
"""A little below what Linux lets one message carry."""


def send(channel: socket.socket, value: object, descriptors: Sequence[int] = ()) -> None:
    """Send a value, and copies of these descriptors."""
    send_pickled(channel, pickle.dumps(value), descriptors)


def send_pickled(channel: socket.socket, body: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send a value that is pickled already."""
    socket.send_fds(channel, [_LENGTH.pack(len(body))], descriptors)
    channel.sendall(body)


def receive(channel: socket.socket) -> tuple[Any, list[int]]:
    """The next value and the descriptors that came with it. Raises EOFError where the other side is gone."""
    head, descriptors, _, _ = socket.recv_fds(channel, _LENGTH.size, MOST_DESCRIPTORS)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    return pickle.loads(_exactly(channel, length)), descriptors


def _exactly(channel: socket.socket, length: int) -> bytes:
    body = bytearray()
    while len(body) < length:
        part = channel.recv(min(length - len(body), 1 << 20))
        if not part:
            raise EOFError
        body += part
    return bytes(body)
