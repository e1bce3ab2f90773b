"""The policies that have a name: the one list that entry points, console, pytest plugin and tests read.

Rows stand in the order in which texts name them. No torch: `--help` shows them, and so does the plugin, which every run
of pytest loads. How a policy explores that does more than draw one schedule after another stands in
exploration/by_name.py, since it learns from whole executions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ddpsim.simulator.choices import Policy
from ddpsim.simulator.policies.pct import CHOICES, DEPTH, Pct
from ddpsim.simulator.policies.random_walk import RandomWalk
from ddpsim.simulator.policies.round_robin import RoundRobin


class PolicyOption(NamedTuple):
    """A number that an exploration by a policy takes, and no other."""

    name: str
    """The keyword of `explore`."""
    help: str
    default: int | None = None


class NamedPolicy(NamedTuple):
    """One row of the list."""

    name: str
    make: Callable[[int, Any, int], Policy] | None = None
    """From a seed, the policy's option, and the number of choices to expect; None for one that only explores."""
    draws: bool = False
    """From a seed: another one gives another schedule, and none covers all."""
    explores: str = ""
    """What an exploration by it runs, for `--help`; "" for one that explores nothing."""
    option: PolicyOption | None = None

    def policy(self, seed: int, option: int | None = None, choices: int = CHOICES) -> Policy:
        """The policy of one execution."""
        assert self.make is not None, f"{self.name} only explores"
        if option is None and self.option is not None:
            option = self.option.default
        return self.make(seed, option, choices)


_ROWS = (
    NamedPolicy("round_robin", lambda seed, option, choices: RoundRobin()),
    NamedPolicy("dpor", explores="one schedule of each class that nobody can tell apart by calls and store"),
    NamedPolicy(
        "dfs",
        explores="all",
        option=PolicyOption("preemptions", "at most so many switches from a rank that could go on"),
    ),
    NamedPolicy("random", lambda seed, option, choices: RandomWalk(seed), draws=True, explores="drawn"),
    NamedPolicy(
        "pct",
        lambda seed, depth, choices: Pct(seed, depth=depth, choices=choices),
        draws=True,
        explores="drawn",
        option=PolicyOption("depth", "how many orderings a bug needs", DEPTH),
    ),
)

POLICIES = {row.name: row for row in _ROWS}
RUNNING = tuple(row.name for row in _ROWS if row.make is not None)
"""Those that a single run may have."""
EXPLORING = tuple(row.name for row in _ROWS if row.explores)
DRAWING = tuple(row.name for row in _ROWS if row.draws)
COVERING = tuple(name for name in EXPLORING if name not in DRAWING)
"""Those by which an exploration can be complete."""

DEFAULT = "round_robin"
"""Of a single run."""
DEFAULT_EXPLORING = "dpor"
DEFAULT_DRAWING = "random"
"""Where only seeds are given."""


def draws(name: object) -> bool:
    """True for the name of a policy to which a seed matters."""
    return isinstance(name, str) and name in DRAWING


def listed(names: Iterable[str], word: str = "or") -> str:
    """As in "round_robin, random or pct"."""
    *others, last = names
    return f"{', '.join(others)} {word} {last}" if others else last


def exploring_text() -> str:
    """What each exploring policy runs; those that run the same are told together."""
    told: dict[str, list[str]] = {}
    for name in EXPLORING:
        told.setdefault(POLICIES[name].explores, []).append(name)
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in told.items())


def option_text(name: str) -> str:
    """What `--help` says of a policy's option."""
    option = POLICIES[name].option
    assert option is not None, f"{name} has no option"
    default = f"  [default: {option.default}]" if option.default is not None else ""
    return f"With {name}: {option.help}.{default}"
