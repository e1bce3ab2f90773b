"""The list of policies by name, for command line, pytest plugin and tests; and the two simplest policies.

The list has the order in which texts name the policies. This module imports no torch, as `--help` and the pytest plugin
load it. Strategies that learn from whole executions are in exploration/strategy.py.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ddpsim.simulator.choices import ChoicePoint, Policy
from ddpsim.simulator.policies.pct import CHOICES, DEPTH, Pct
from ddpsim.simulator.wording import values_by_key


class RandomWalk:
    """Draws each choice uniformly from the options. The same seed gives the same schedule for the same program."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Return the index of an option, drawn uniformly."""
        # int(random() * n), not randrange: the same bits on every Python version, and a third of the time.
        return int(self._random.random() * len(options))


class RoundRobin:
    """Always takes the default: the running rank continues until it has to wait, then the next enabled rank runs.

    Its schedule is empty, and its interleaving is the easiest to read.
    """

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Return 0, the default choice."""
        return 0


class PolicyOption(NamedTuple):
    """An integer option of one policy's exploration."""

    name: str
    """The keyword argument of `explore`."""
    help: str
    default: int | None = None


class NamedPolicy(NamedTuple):
    """A policy by name: how it is made, and which schedules an exploration with it runs."""

    name: str
    make: Callable[[int, Any, int], Policy] | None = None
    """Makes the policy from a seed, its option and the expected number of choices; None if it can only explore."""
    draws: bool = False
    """True if the seed decides the schedule; no number of seeds is sure to cover all schedules."""
    explores: str = ""
    """The schedules that an exploration with this policy runs, for `--help`; "" if it cannot explore."""
    option: PolicyOption | None = None

    def make_policy(self, seed: int, option: int | None = None, choices: int = CHOICES) -> Policy:
        """Return the policy of one execution."""
        assert self.make is not None, f"{self.name} only explores"
        if option is None and self.option is not None:
            option = self.option.default
        return self.make(seed, option, choices)


_ROWS = (
    NamedPolicy("round_robin", lambda seed, option, choices: RoundRobin()),
    NamedPolicy("dpor", explores="one schedule of each class that is equivalent in calls and store"),
    NamedPolicy(
        "dfs",
        explores="all",
        option=PolicyOption("preemptions", "at most so many switches from a rank that could continue"),
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
"""The policies that can be used for a single run."""
EXPLORING = tuple(row.name for row in _ROWS if row.explores)
DRAWING = tuple(row.name for row in _ROWS if row.draws)
COVERING = tuple(name for name in EXPLORING if name not in DRAWING)
"""The policies with which an exploration can cover all schedules."""

DEFAULT = "round_robin"
DEFAULT_EXPLORING = "dpor"
DEFAULT_DRAWING = "random"
"""The default policy if the user gives only seeds."""


def uses_seed(name: object) -> bool:
    """Return whether the policy with this name uses its seed."""
    return isinstance(name, str) and name in DRAWING


def join_names(names: Iterable[str], word: str = "or") -> str:
    """Return policy names as text, as in "round_robin, random or pct"."""
    *others, last = names
    return f"{', '.join(others)} {word} {last}" if others else last


def exploring_policies_text() -> str:
    """Return the `--help` text on the schedules that exploring policies run; policies with equal ones are together."""
    by_text = values_by_key((POLICIES[name].explores, name) for name in EXPLORING)
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in by_text.items())


def policy_option_text(name: str) -> str:
    """Return the `--help` text of a policy's option."""
    option = POLICIES[name].option
    assert option is not None, f"{name} has no option"
    default = f"  [default: {option.default}]" if option.default is not None else ""
    return f"With {name}: {option.help}.{default}"
