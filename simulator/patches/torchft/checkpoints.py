"""torchft's server of checkpoints, which the ranks of a simulation ask through a store, without a socket."""

import http.client
import io
import urllib.error
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from ddpsim.simulator.patches.torchft.servers import Client, Server, send


class CheckpointServer(Server):
    """An HTTP server. torchft's own handler answers, on torchft's own thread."""

    def __init__(self, address: object, handler: Any) -> None:
        super().__init__(":0", "localhost")
        port, self._handler = self._store.port, handler
        self.socket = SimpleNamespace(getsockname=lambda: ("", port))

    def shutdown(self) -> None:
        """Let `serve_forever` return."""
        send(self._store, "stop")

    def _on_get(self, path: str, reply_to: str) -> None:
        link = _Link(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        self._handler(link, ("localhost", 0), self)
        self._store.queue_push(reply_to, link.answer.getvalue())


class _Link:
    """The socket of a handler: it has the whole request, and takes the answer."""

    def __init__(self, request: bytes) -> None:
        self.answer, limits = io.BytesIO(), [0.0]
        self.makefile = lambda *_: io.BytesIO(request)
        self.sendall = self.answer.write
        self.settimeout, self.gettimeout = limits.append, lambda: limits[-1]


def open_url(url: str, timeout: float) -> http.client.HTTPResponse:
    """Return the answer of a simulated server, as `urllib.request.urlopen` does."""
    address, _, path = url.removeprefix("http://").partition("/")
    limit = timedelta(seconds=timeout)
    answer = Client(address, limit).ask("get", limit, path=f"/{path}")
    link: Any = SimpleNamespace(makefile=lambda *_: io.BytesIO(answer))
    response = http.client.HTTPResponse(link)
    response.begin()
    if response.status >= 400:
        raise urllib.error.HTTPError(url, response.status, response.reason, response.headers, response)
    return response
