"""Dpor against random schedules: drawn programs in which two threads of each rank share what torch keeps for a rank.

    python -m tests.exploration.shared_programs --programs 2000 --seed 7

The threads make, split, use, look for and destroy groups and meshes, use a store, and set and ask futures. What random
schedules come to and dpor does not is missed. Threads share no variable of the program's own, of which dpor knows
nothing: each keeps what it makes, and what both use is made before the second one starts.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from ddpsim import Budget, explore
from ddpsim.simulator.exploration.dpor import Dpor
from ddpsim.simulator.exploration.explorer import Outcome, outcome_of_result
from ddpsim.simulator.exploration.strategy import ForwardingStrategy, strategy_by_name
from ddpsim.simulator.result import Result
from ddpsim.simulator.verdict import Finding
from tests.exploration.programs import store

Texts = tuple[tuple[tuple[str, ...], ...], ...]
"""By rank and thread, the names of the operations."""


class Shared:
    """What the threads of a rank share; all of it is made before the second thread starts."""

    def __init__(self) -> None:
        self.group = dist.new_group()
        self.store, self.hash_store = store(), dist.HashStore()
        self.future: torch.futures.Future[int] = torch.futures.Future()


class Player:
    """One thread: what it has seen and made."""

    def __init__(self, shared: Shared, number: int) -> None:
        self.shared, self.number = shared, number
        self.seen: list[object] = []
        self.own: Any = None

    def play(self, names: tuple[str, ...]) -> None:
        for name in names:
            try:
                self.seen.append(OPERATIONS[name](self))
            except (RuntimeError, ValueError, AssertionError, KeyError) as error:
                self.seen.append(type(error).__name__)

    def keep(self, group: Any) -> str:
        self.own = group
        return str(getattr(group, "group_name", group))

    def reduce(self, group: Any) -> float:
        tensor = torch.ones(self.number + 1)
        dist.all_reduce(tensor, group=group)
        return tensor.sum().item()

    def finish_by_call(self) -> None:
        """Let the end of a call set the future that the threads share."""
        future = dist.all_reduce(torch.ones(self.number + 1), group=self.shared.group, async_op=True).get_future()
        future.then(lambda _: self.shared.future.set_result(self.number))

    def call_and_go_on(self) -> float:
        """Wait for what a callback makes of a call."""
        tensor = torch.ones(self.number + 1)
        future = dist.all_reduce(tensor, group=self.shared.group, async_op=True).get_future()
        return future.then(lambda _: tensor.sum().item()).wait()  # type: ignore[no-any-return]


FAMILIES: dict[str, dict[str, Callable[[Player], object]]] = {
    "groups": {
        "make": lambda me: me.keep(dist.new_group()),
        "make hashed": lambda me: me.keep(dist.new_group([0], use_local_synchronization=True)),
        "split": lambda me: me.keep(dist.split_group(split_ranks=[[*range(dist.get_world_size())]])),
        "mesh": lambda me: me.keep(init_device_mesh("cpu", (1, dist.get_world_size())).get_group(1)),
        "reduce": lambda me: me.reduce(me.own or me.shared.group),
        "destroy": lambda me: dist.destroy_process_group(me.own or me.shared.group),
    },
    "a group": {
        "reduce": lambda me: me.reduce(me.own or me.shared.group),
        "reduce on all": lambda me: me.reduce(None),
        "destroy shared": lambda me: dist.destroy_process_group(me.shared.group),
        "destroy all": lambda me: dist.destroy_process_group(),
        "is initialized": lambda me: dist.is_initialized(),
        "ranks of shared": lambda me: dist.get_process_group_ranks(me.shared.group),
    },
    "stores": {
        "set": lambda me: me.shared.store.set("k", str(me.number)),
        "get": lambda me: me.shared.store.get("k"),
        "add": lambda me: me.shared.store.add("n", 1),
        "check": lambda me: me.shared.store.check(["k"]),
        "set in own": lambda me: me.shared.hash_store.set("k", str(me.number)),
        "get in own": lambda me: me.shared.hash_store.get("k"),
        "limit own": lambda me: me.shared.hash_store.set_timeout(timedelta(seconds=1)),
        "make store": lambda me: dist.HashStore().add("k", 1),
    },
    "futures": {
        "finish": lambda me: me.shared.future.set_result(me.number),
        "is done": lambda me: me.shared.future.done(),
        "look at key": lambda me: me.shared.store.check(["k"]),
        "await": lambda me: me.shared.future.wait(),
        "call back": lambda me: me.shared.future.then(lambda future: me.seen.append("called")) and None,
        "finish by call": lambda me: me.finish_by_call(),
        "call and go on": lambda me: me.call_and_go_on(),
    },
}
OPERATIONS = {name: act for family in FAMILIES.values() for name, act in family.items()}


def drawn_texts(seed: int) -> Texts:
    """The texts of two threads for each rank; mostly all ranks have the same."""
    chance = random.Random(seed)
    world_size, most = chance.choice(((1, 3), (2, 1), (2, 2)))
    kinds = sorted(
        {name for family in chance.sample(sorted(FAMILIES), chance.choice((1, 1, 2))) for name in FAMILIES[family]}
    )

    def texts() -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(chance.choice(kinds) for _ in range(chance.randint(1, most))) for _ in range(2))

    first = texts()
    return (first, *(first if chance.random() < 0.7 else texts() for _ in range(world_size - 1)))


def program_of(texts: Texts) -> Callable[[int], object]:
    """The program in which each rank plays its texts."""

    def program(rank: int) -> object:
        shared = Shared()
        players = [Player(shared, number) for number in range(2)]
        thread = threading.Thread(target=players[1].play, args=(texts[rank][1],))
        thread.start()
        players[0].play(texts[rank][0])
        thread.join()
        return [player.seen for player in players]

    return program


class Compared(NamedTuple):
    """What dpor did not find."""

    texts: Texts
    missed: set[Outcome]
    executions: int
    """Of dpor."""
    is_covered: bool
    """True if dpor says that it covered all."""


class Collecting(ForwardingStrategy):
    """A strategy that keeps the outcomes of all executions."""

    def __init__(self, strategy: Any) -> None:
        super().__init__(strategy)
        self.found: set[Outcome] = set()

    def take(self, result: Result) -> Finding | None:
        """Keep the outcome."""
        finding = super().take(result)
        self.found.add(outcome_of_result(result))
        return finding


def compared(texts: Texts, *, walks: int = 40, most: int = 1000) -> Compared:
    """Compare with random schedules."""
    program, size = program_of(texts), len(texts)
    few, walked = Collecting(Dpor(size)), Collecting(strategy_by_name("random", size))
    ran = explore(program, size, policy=few, budget=Budget(executions=most, seconds=60), keep_going=True)
    is_said_to_be_covered = ran.complete and not ran.untested
    if is_said_to_be_covered:
        explore(program, size, policy=walked, budget=Budget(executions=walks, seconds=60), keep_going=True)
    return Compared(texts, walked.found - few.found, ran.executions, is_said_to_be_covered)


def main() -> int:
    """Tell what was missed; 1 if anything was."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    missed = covered = executions = 0
    began = time.monotonic()
    for seed in range(options.seed, options.seed + options.programs):
        result = compared(drawn_texts(seed))
        covered += result.is_covered
        executions += result.executions
        if result.missed:
            missed += 1
            print(seed, result, flush=True)
    seconds = time.monotonic() - began
    print(f"{options.programs} programs, {covered} said to be covered, {executions} executions")
    print(f"{missed} missed, {seconds:.0f} s")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
