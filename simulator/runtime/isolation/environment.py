"""Gives each rank its own environment variables.

`os.environ` and `os.environb` share one dict (`os.py`, `_Environ._data`). Replacing it by a rank's dict switches both,
also for code that keeps a reference to `os.environ`. Python also writes to the environment that C code and child
processes see: a rank's changes are put there while the rank runs. The variables that a launcher sets (RANK and so on)
are not put into the C environment: nothing in torch reads them there, and it would cost more than the rest of a context
switch.

Changes by `os.putenv` and `os.unsetenv`, which `os.environ` does not see either, are not isolated.
"""

import os
from typing import Any

from ddpsim.simulator.hosts import RankHost, common_variables


class RankVariables(dict[Any, Any]):
    """A rank's environment variables, encoded as in `os.environ`, and the names of those that the rank itself wrote.

    Only setting and deleting of single variables is recorded: `os.environ` does nothing else.
    """

    __slots__ = ("_written_by_anybody", "written")

    def __init__(self, inherited: dict[Any, Any], written_by_anybody: dict[Any, None]) -> None:
        super().__init__(inherited)
        self._written_by_anybody = written_by_anybody
        self.written: dict[Any, None] = {}
        """The variable names that the rank wrote, in the order in which they go to the C environment."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.written[key] = self._written_by_anybody[key] = None

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        self.written[key] = self._written_by_anybody[key] = None


class RankEnvironments:
    """The environment variables of all ranks: each has a copy of the host process's, plus torchrun's."""

    def __init__(self, world_size: int) -> None:
        self.text = vars(os.environ)
        self.binary = vars(getattr(os, "environb", os.environ))  # there is none on Windows
        self.host: dict[Any, Any] = self.text["_data"]
        self.written_by_ranks: dict[Any, None] = {}
        """The variable names that any rank wrote. While there are none, the C environment need not be changed."""
        self._launched = _encode_variables(**common_variables(RankHost(0, world_size)))
        self._base = self.host | self._launched
        self._ranks_own = tuple(_encode_variables(RANK="", LOCAL_RANK=""))

    def initial_variables(self, rank: int) -> RankVariables:
        """Return the variables with which torchrun would start the rank."""
        if self.text["_data"] is self.host:  # the host may have written since the last rank started
            self._base = self.host | self._launched
        variables = RankVariables(self._base, self.written_by_ranks)
        own = os.environ.encodevalue(str(rank))
        for key in self._ranks_own:
            dict.__setitem__(variables, key, own)
        return variables

    def exchange_in_c(self, outgoing: dict[Any, Any], incoming: dict[Any, Any]) -> None:
        """In the C environment, replace what rank `outgoing` changed by what `incoming` changed, where these differ."""
        if isinstance(outgoing, RankVariables):
            # Forget keys that have the host's value, to save work later (`mock.patch.dict` writes every key).
            for key in [key for key in outgoing.written if outgoing.get(key) == self.host.get(key)]:
                del outgoing.written[key]
        before, after = _written_variables(outgoing), _written_variables(incoming)
        for key in before | after:
            value = after[key] if key in after else self.host.get(key)
            if value == (before[key] if key in before else self.host.get(key)):
                continue
            if value is None:
                os.unsetenv(key)
            else:
                os.putenv(key, value)


def _written_variables(variables: dict[Any, Any]) -> dict[Any, Any]:
    """Return the variables that a rank or the host process wrote, with their values; None for deleted ones."""
    return {key: variables.get(key) for key in getattr(variables, "written", ())}


def _encode_variables(**variables: str) -> dict[Any, Any]:
    return {os.environ.encodekey(key): os.environ.encodevalue(value) for key, value in variables.items()}
