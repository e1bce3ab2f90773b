"""Dpor against plain search: drawn programs, and all programs of a size, at the kernel.

    python -m tests.exploration.differential --programs 2000 --seed 7   drawn, against 200 random schedules each
    python -m tests.exploration.differential --all                      all programs of PRODUCTS, against all schedules

A family is an alphabet of operations, so that each kind of thing that ranks can notice meets each other one that it can
meet. What all schedules of a program come to is found once (stateful.py) for all programs in which the same ranks
stand in other places; dpor runs each of these.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations_with_replacement, permutations, product
from typing import NamedTuple

from ddpsim.simulator.exploration.dpor import Dpor
from ddpsim.simulator.policies.named import RandomWalk
from tests.exploration.kernel_programs import KernelRun, Operation, Program, Ran, explored
from tests.exploration.stateful import Futures, searched

Places = tuple[int, ...]
Families = Mapping[str, tuple[Operation, ...]]
OWN = b"own"
"""In an operation: a value that only one rank writes."""

WAIT = ("wait_key", "a", None)

FAMILIES: Families = {
    "values": (("set", "a", OWN), ("get", "a"), ("check", "a"), ("delete", "a"), ("compare_set", "a", b"", OWN), WAIT),
    "numbers": (("add", "a", 1), ("add", "a", 0), ("set", "a", b"1"), ("compare_set", "a", b"1", b"2"), ("count",)),
    "queues": (("push", "a", OWN), ("pop", "a", True), ("pop", "a", False), ("length", "a"), ("check", "a")),
    "keys": (
        ("set_all", ("a", "b"), OWN),
        ("get_all", ("a", "b")),
        ("wait_all", ("a", "b")),
        ("check_all", ("a", "b")),
        ("set", "a", OWN),
        ("set", "b", OWN),
        ("append", "a", OWN),
        ("delete", "a"),
        ("list",),
    ),
    "messages": (("send", 1), ("send", -1), ("receive", None), ("receive", -1), ("wait", None)),
    "sources": (("send", 1), ("send", -1), ("receive", None), ("wait", None), ("set", "a", OWN), ("get", "a")),
    "polls": (("reduce",), ("poll",), ("wait", None), ("set", "a", OWN), ("check", "a")),
    "mismatches": (("reduce",), ("unless", "a", "broadcast"), ("set", "a", OWN), ("check", "a"), ("delete", "a")),
    "time": (("sleep", 1.0), ("wait_key", "a", 1.0), ("set", "a", OWN), ("reduce",), ("wait", 1.0)),
}
MIXED: Families = {
    "mixed": tuple(dict.fromkeys(chain(*(letters for family, letters in FAMILIES.items() if family != "keys"))))
}
"""What meets only across families: of each rank fewer operations, as there are so many."""

RINGS = ("messages", "sources", "mixed")
"""Families whose operations name neighbours: their ranks may change places only all the way round."""


class Product(NamedTuple):
    """All programs of a family with so many ranks, each of at most so many operations."""

    ranks: int
    most: int


_FEWER = (Product(2, 2), Product(3, 1))
PRODUCTS = {family: (Product(2, 3), Product(3, 2)) for family in FAMILIES} | {"keys": _FEWER, "mixed": _FEWER}
"""What is exhausted. Larger ones are drawn."""


def all_programs(family: str, size: Product) -> Iterator[Program]:
    """Every program of a product; one of those that are `placed` alike.

    A wait or poll without a call to look at is no operation, and the program without it is another one of these.
    """
    letters = _letters(family, size.ranks)
    texts = [
        text
        for length in range(size.most + 1)
        for text in product(letters, repeat=length)
        if _has_what_it_asks_for(text)
    ]
    if family in RINGS:
        numbered = product(range(len(texts)), repeat=size.ranks)
        chosen = (ranks for ranks in numbered if ranks == min(_turned(ranks)))
    else:
        chosen = combinations_with_replacement(range(len(texts)), size.ranks)
    return (_program([texts[number] for number in ranks]) for ranks in chosen)


def placed(family: str, program: Program) -> dict[Program, Places]:
    """The programs in which ranks have changed places, and who of the given one stands in each place."""
    places = range(len(program))
    orders = _turned(tuple(places)) if family in RINGS else permutations(places)
    return {tuple(program[rank] for rank in order): order for order in orders}


def _turned(ranks: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [ranks[start:] + ranks[:start] for start in range(len(ranks))]


def _has_what_it_asks_for(text: tuple[Operation, ...]) -> bool:
    calls = 0
    for name, *_ in text:
        if name in ("wait", "poll") and not calls:
            return False
        calls += {"reduce": 1, "send": 1, "receive": 1, "wait": -1}.get(name, 0)
    return True


def _letters(family: str, size: int) -> list[Operation]:
    """Without those that say the same in so small a world."""
    written = (FAMILIES | MIXED)[family]
    return list(
        dict.fromkeys(
            (name, each[0] % size) if name in ("send", "receive") and each[0] else (name, *each)
            for name, *each in written
        )
    )


def drawn_programs(seed: int, count: int, *, family: str | None = None) -> Iterator[tuple[str, Program]]:
    """So many programs of 2 or 3 ranks, with up to 3 operations a rank of 2, and up to 2 of 3."""
    chance = random.Random(seed)
    for _ in range(count):
        name = family or chance.choice(sorted(FAMILIES))
        ranks = chance.choice((2, 3, 3))
        letters = _letters(name, ranks)
        lengths = [chance.randint(1, 3 if ranks == 2 else 2) for _ in range(ranks)]
        yield name, _program([tuple(chance.choice(letters) for _ in range(length)) for length in lengths])


def _program(ranks: Sequence[tuple[Operation, ...]]) -> Program:
    """With a value of its own for each rank."""
    return tuple(
        tuple(tuple(b"%d" % rank if each is OWN else each for each in operation) for operation in operations)
        for rank, operations in enumerate(ranks)
    )


def hangs_on_looks(program: Program) -> bool:
    """True if a rank looks for a key and then waits with a time-out, beside one that waits as long.

    Whether both end at one instant hangs on how often was looked in vain, which lets time pass: dpor leaves that out.
    """
    names = [[name for name, *arguments in rank if name != "wait_key" or arguments[-1]] for rank in program]
    looks = [rank[:1] in (["check"], ["unless"]) and "wait_key" in rank for rank in names]
    return any(looks) and any(rank[:1] in (["sleep"], ["wait_key"]) for rank in names)


class Compared(NamedTuple):
    """What dpor did not find, or a search did not that is said to find all."""

    program: Program
    missing: set[Ran]
    too_many: set[Ran]
    executions: int
    """Of dpor."""

    @property
    def differs(self) -> bool:
        return bool(self.missing or self.too_many) and not hangs_on_looks(self.program)


def against_search(family: str, program: Program, futures: Futures | None = None) -> Iterator[Compared]:
    """Compare each program in which these ranks change places with a search that runs no state twice."""
    full = searched(program, futures)
    for each, places in placed(family, program).items():
        few = explored(each, Dpor(len(each)))
        assert few.is_complete
        found = {ran.placed(places) for ran in few.outcomes}
        yield Compared(each, full.outcomes - found, found - full.outcomes, few.executions + few.redundant)


def exhausted(family: str, size: Product) -> Iterator[Compared]:
    """Compare all programs of a product."""
    futures: Futures = {}
    return (each for program in all_programs(family, size) for each in against_search(family, program, futures))


def against_walks(program: Program, walks: int = 200) -> Compared:
    """Compare with random schedules."""
    few = explored(program, Dpor(len(program)))
    assert few.is_complete
    found = {KernelRun(program, RandomWalk(seed)).ran for seed in range(walks)}
    return Compared(program, found - few.outcomes, set(), few.executions + few.redundant)


def main() -> int:
    """Tell what was missed; 1 if anything was."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", choices=sorted(PRODUCTS))
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--ranks", type=int, choices=(2, 3), help="of --all, only those of so many ranks")
    options = parser.parse_args()
    if not options.all:
        drawn = drawn_programs(options.seed, options.programs, family=options.family)
        return int(told("drawn", (against_walks(program) for _, program in drawn)))
    is_bad = False
    for family in [options.family] if options.family else PRODUCTS:
        for size in (each for each in PRODUCTS[family] if options.ranks in (None, each.ranks)):
            is_bad |= told(f"{family}, {size.ranks} ranks, up to {size.most} each", exhausted(family, size))
    return int(is_bad)


def told(name: str, compared: Iterable[Compared]) -> bool:
    """Print what differs, and counts; whether anything did."""
    programs = executions = bad = 0
    began = time.process_time()
    for each in compared:
        programs += 1
        executions += each.executions
        if each.differs:
            bad += 1
            print(name, *each, flush=True)
    seconds = time.process_time() - began
    print(f"{name}: {programs} programs, {executions} executions, {bad} differ, {seconds:.0f} s", flush=True)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
