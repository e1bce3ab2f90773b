"""The pool's side of the server: start it, have it fork and end ranks, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from ddpsim.scenarios.agreement.pool import messages
from ddpsim.scenarios.agreement.pool.server import End, Failed, Start
from ddpsim.simulator.errors import UsageError

_SERVE = (
    "import sys; sys.path[:] = sys.argv[2:]; from ddpsim.scenarios.agreement.pool.server import serve; "
    "serve(int(sys.argv[1]))"
)
_CLOSING_SECONDS = 10.0


class PoolError(Exception):
    """Ranks cannot be started or ended: nothing is known about the programs then."""


class ServerLink:
    """A server, from when it is asked for until `close`."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as complaints:
            self._process = _start(theirs.fileno(), complaints)
            self._complaints = os.dup(complaints.fileno())

    def wait_until_ready(self) -> None:
        """Return once it has loaded torch. Raises PoolError if it ends instead."""
        try:
            messages.receive(self._control)
        except EOFError:
            status = self._process.wait()
            raise PoolError(
                f"the process that starts the ranks ended while starting, with {ending_text(status)}"
                f"{self._last_complaint()}, expected it to load torch: see whether `import torch` works here"
            ) from None

    def start(self, channels: Sequence[socket.socket], module: str, timeout_seconds: float) -> tuple[int, ...]:
        """Fork a rank at the other end of each channel; returns their process ids."""
        if len(channels) > messages.MOST_DESCRIPTORS:
            raise UsageError(
                f"world size is {len(channels)}, expected at most {messages.MOST_DESCRIPTORS}: take a smaller one"
            )
        answer = self._ask(Start(module, timeout_seconds), [each.fileno() for each in channels])
        if isinstance(answer, Failed):
            raise PoolError(
                f"found no way to start {len(channels)} ranks ({answer.reason}), expected a process for each: "
                "take a smaller world size or fewer teams, or raise the limit of processes"
            )
        assert isinstance(answer, tuple)
        return answer

    def end(self, processes: Sequence[int]) -> tuple[int, ...]:
        """End these ranks; returns what each ended with: an exit status, or minus a signal."""
        answer = self._ask(End(tuple(processes)))
        assert isinstance(answer, tuple)
        return answer

    def close(self) -> None:
        """End the server and its ranks, whatever state they are in."""
        self._control.close()
        os.close(self._complaints)
        try:
            self._process.wait(_CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:  # also after Ctrl-C; and where the server was killed, its ranks have not ended with it
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _ask(self, request: Start | End, descriptors: Sequence[int] = ()) -> Any:
        try:
            messages.send(self._control, request, descriptors)
            return messages.receive(self._control)[0]
        except (EOFError, OSError):
            raise PoolError(
                "the process that starts the ranks is gone, expected it to last as long as its pool: run it again, "
                "and if that helps nothing, see whether the machine has memory left"
            ) from None
        except BaseException:
            self._control.close()  # the answer, when it comes, would be taken for that to another question
            raise

    def _last_complaint(self) -> str:
        text = os.pread(self._complaints, 1 << 16, 0).decode(errors="replace").strip()
        return f" ({text.splitlines()[-1]})" if text else ""


def ending_text(status: int) -> str:
    """What a process ended with, in words; a negative status is minus the signal."""
    return f"exit status {status}" if status >= 0 else signal.Signals(-status).name


def _start(descriptor: int, complaints: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(descriptor), *(each or os.getcwd() for each in sys.path)],
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        stdout=complaints,
        stderr=complaints,
        env=_environment(os.environ),
        start_new_session=True,  # Ctrl-C is for us; and together they can be ended by one signal
    )


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    """The ranks are many, small, and all on this machine; and they are to do what gloo itself does."""
    # torch checks calls against each other if told to, with errors that gloo alone would not raise.
    kept = {name: value for name, value in ours.items() if name != "TORCH_DISTRIBUTED_DEBUG"}
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    return kept | {"OMP_NUM_THREADS": "1"} | ({"GLOO_SOCKET_IFNAME": loopback} if loopback else {})
