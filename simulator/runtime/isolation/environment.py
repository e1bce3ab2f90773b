"""The environment variables.

`os.environ` and `os.environb` share one dict (`os.py`, `_Environ._data`), so putting a rank's dict in there switches
them both, for code that holds on to `os.environ` too. They also write through to the environment that C code and child
processes see; what a rank wrote is put there when the rank runs, and taken back when it does not. The variables that a
launcher sets stay out of the C environment: nothing in torch reads them there, and it would cost more than the rest of
a hand-over.

Writing with `os.putenv` and `os.unsetenv`, which `os.environ` does not see either, is not isolated.
"""

from __future__ import annotations

import os
from typing import Any

MASTER_ADDR = "127.0.0.1"
MASTER_PORT = "29500"
"""torchrun's own defaults. Nobody listens there: the rendezvous of a simulation happens in memory."""


class RankVariables(dict[Any, Any]):
    """A rank's variables, encoded as `os.environ` keeps them, and the keys that the rank wrote.

    `_Environ` sets and deletes nothing but single items.
    """

    __slots__ = ("written",)

    def __init__(self, inherited: dict[Any, Any]) -> None:
        super().__init__(inherited)
        self.written: dict[Any, None] = {}
        """A dict for its order: the keys are put into the C environment one after the other."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.written[key] = None

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        self.written[key] = None


class Environment:
    """`os.environ`: a copy of the host's for each rank, with the variables that torchrun would set."""

    def __init__(self, world_size: int) -> None:
        self._text = vars(os.environ)
        self._binary = vars(getattr(os, "environb", os.environ))  # there is none on Windows
        self._host: dict[Any, Any] = self._text["_data"]
        self._in_c: dict[Any, None] = {}
        """Keys whose value in C may be a rank's."""
        self._launched = self._encode(
            RANK="0",
            LOCAL_RANK="0",
            WORLD_SIZE=str(world_size),
            LOCAL_WORLD_SIZE=str(world_size),
            MASTER_ADDR=MASTER_ADDR,
            MASTER_PORT=MASTER_PORT,
        )
        self._ranks_own = tuple(self._encode(RANK="", LOCAL_RANK=""))

    def install(self) -> None:
        """Nothing to prepare."""

    def initial(self, rank: int) -> RankVariables:
        """Return what torchrun would start the rank with."""
        variables = RankVariables(self._host)
        variables.update(self._launched)
        variables.update(dict.fromkeys(self._ranks_own, os.environ.encodevalue(str(rank))))
        return variables

    def save(self) -> dict[Any, Any]:
        """Return the variables in place."""
        variables: dict[Any, Any] = self._text["_data"]
        if type(variables) is RankVariables and variables.written:
            self._forget_unchanged(variables)
            self._in_c.update(variables.written)
        return variables

    def load(self, state: dict[Any, Any]) -> None:
        """Put variables in place."""
        self._text["_data"] = self._binary["_data"] = state
        if self._in_c:
            _put_in_c(tuple(self._in_c), self._host)
            self._in_c.clear()
        if type(state) is RankVariables and state.written:
            _put_in_c(tuple(state.written), state)

    def uninstall(self) -> None:
        """Nothing to undo."""

    def _encode(self, **variables: str) -> dict[Any, Any]:
        return {os.environ.encodekey(key): os.environ.encodevalue(value) for key, value in variables.items()}

    def _forget_unchanged(self, variables: RankVariables) -> None:
        """Keep what equals the host's value out of every later hand-over (`mock.patch.dict` writes every key)."""
        for key in tuple(variables.written):
            if variables.get(key) == self._host.get(key):
                del variables.written[key]


def _put_in_c(keys: tuple[Any, ...], variables: dict[Any, Any]) -> None:
    for key in keys:
        if key in variables:
            os.putenv(key, variables[key])
        else:
            os.unsetenv(key)
