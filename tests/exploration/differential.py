"""Dpor against plain search: drawn programs, and all programs of a size, at the kernel.

    python -m tests.exploration.differential --programs 2000 --seed 7      drawn, against 200 random schedules each
    python -m tests.exploration.differential --all                         every program of PRODUCTS, against plain DFS

A family is an alphabet of operations, so that each kind of thing that ranks can notice meets each other one that it can
meet. Ranks that do the same are alike but for the value they write, so a program stands for those in which ranks change
places; which of these it is, is drawn.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement, product
from typing import NamedTuple

from ddpsim.simulator.exploration.dpor import Dpor
from ddpsim.simulator.policies.dfs import Dfs
from ddpsim.simulator.policies.random_walk import RandomWalk
from tests.exploration.kernel_programs import KernelRun, Operation, Program, Ran, explored

Letter = Callable[[int, int], Operation]
"""An operation of a rank in a world of so many."""


def _own(rank: int) -> bytes:
    return b"%d" % rank


FAMILIES: dict[str, tuple[Letter, ...]] = {
    "values": (
        lambda rank, size: ("set", "a", _own(rank)),
        lambda rank, size: ("get", "a"),
        lambda rank, size: ("check", "a"),
        lambda rank, size: ("delete", "a"),
        lambda rank, size: ("compare_set", "a", b"", _own(rank)),
    ),
    "numbers": (
        lambda rank, size: ("add", "a", 1),
        lambda rank, size: ("add", "a", 0),
        lambda rank, size: ("set", "a", b"1"),
        lambda rank, size: ("compare_set", "a", b"1", b"2"),
        lambda rank, size: ("count",),
    ),
    "queues": (
        lambda rank, size: ("push", "a", _own(rank)),
        lambda rank, size: ("pop", "a", True),
        lambda rank, size: ("pop", "a", False),
        lambda rank, size: ("length", "a"),
        lambda rank, size: ("check", "a"),
    ),
    "messages": (
        lambda rank, size: ("send", (rank + 1) % size),
        lambda rank, size: ("send", (rank - 1) % size),
        lambda rank, size: ("receive", None),
        lambda rank, size: ("receive", (rank - 1) % size),
        lambda rank, size: ("wait", None),
    ),
    "polls": (
        lambda rank, size: ("reduce",),
        lambda rank, size: ("poll",),
        lambda rank, size: ("wait", None),
        lambda rank, size: ("set", "a", _own(rank)),
        lambda rank, size: ("check", "a"),
    ),
    "time": (
        lambda rank, size: ("sleep", 1.0),
        lambda rank, size: ("wait_key", "a", 1.0),
        lambda rank, size: ("set", "a", _own(rank)),
        lambda rank, size: ("reduce",),
        lambda rank, size: ("wait", 1.0),
    ),
}


class Product(NamedTuple):
    """All programs of a family with so many ranks, each of at most so many operations, and so many in all."""

    ranks: int
    most: int
    most_in_all: int


PRODUCTS = (Product(2, 3, 4), Product(3, 2, 4))
"""What is exhausted: of every family. Larger ones are drawn."""


def all_programs(family: str, size: Product) -> Iterator[Program]:
    """Every program of a product."""
    letters = range(len(FAMILIES[family]))
    texts = [text for length in range(size.most + 1) for text in product(letters, repeat=length)]
    place = random.Random(0)
    for chosen in combinations_with_replacement(texts, size.ranks):
        if sum(map(len, chosen)) <= size.most_in_all and sum(map(bool, chosen)) > 1:
            ranks = list(chosen)
            place.shuffle(ranks)
            yield _program(family, ranks)


def drawn_programs(seed: int, count: int, *, family: str | None = None) -> Iterator[tuple[str, Program]]:
    """So many programs of 2 or 3 ranks, with up to 3 operations a rank of 2, and up to 2 of 3."""
    chance = random.Random(seed)
    for _ in range(count):
        name = family or chance.choice(sorted(FAMILIES))
        ranks = chance.choice((2, 3, 3))
        letters = range(len(FAMILIES[name]))
        lengths = [chance.randint(1, 3 if ranks == 2 else 2) for _ in range(ranks)]
        yield name, _program(name, [tuple(chance.choice(letters) for _ in range(length)) for length in lengths])


def _program(family: str, ranks: list[tuple[int, ...]]) -> Program:
    letters = FAMILIES[family]
    return tuple(tuple(letters[each](rank, len(ranks)) for each in text) for rank, text in enumerate(ranks))


class Missed(NamedTuple):
    """What dpor did not find, or a search did not that is said to find all."""

    program: Program
    missing: set[Ran]
    too_many: set[Ran]

    def __bool__(self) -> bool:
        return bool(self.missing or self.too_many)


def against_search(program: Program) -> Missed:
    """Compare with a plain depth-first search, which ends."""
    few, full = explored(program, Dpor(len(program))), explored(program, Dfs())
    assert few.is_complete
    assert full.is_complete
    return Missed(program, full.outcomes - few.outcomes, few.outcomes - full.outcomes)


def against_walks(program: Program, walks: int = 200) -> Missed:
    """Compare with random schedules."""
    few = explored(program, Dpor(len(program)))
    assert few.is_complete
    found = {KernelRun(program, RandomWalk(seed)).ran for seed in range(walks)}
    return Missed(program, found - few.outcomes, set())


def main() -> int:
    """Tell what was missed; 1 if anything was."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", choices=sorted(FAMILIES))
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    if options.all:
        families = [options.family] if options.family else sorted(FAMILIES)
        sizes = [(family, size) for family in families for size in PRODUCTS]
        runs = (
            (f"{family} {size}", against_search(each)) for family, size in sizes for each in all_programs(family, size)
        )
    else:
        drawn = drawn_programs(options.seed, options.programs, family=options.family)
        runs = ((family, against_walks(program)) for family, program in drawn)
    counts: dict[str, list[int]] = {}
    for name, missed in runs:
        count = counts.setdefault(name, [0, 0])
        count[0] += 1
        if missed:
            count[1] += 1
            print(name, *missed, flush=True)
    for name, (count_of, bad) in counts.items():
        print(f"{name}: {count_of} programs, {bad} with outcomes missed")
    return int(any(bad for _, bad in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
