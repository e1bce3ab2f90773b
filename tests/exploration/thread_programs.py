"""Small programs of the threads of a rank as values: run on the simulator, and on a model of what Python's do.

A program is a tuple of threads, the rank's main one first, each a tuple of names of operations. They share a lock, a
queue, an event and a future. The model knows nothing of the simulator: its steps are what the documentation of
`threading` and `queue` says of these objects, and a lock that is given back goes to anybody who asks.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch

from ddpsim import Budget, explore
from tests.kit.rank_threads import start

ThreadProgram = tuple[tuple[str, ...], ...]
PLENTY = Budget(executions=20_000, seconds=600)
STUCK = "stuck"
"""What comes of a program in which somebody waits for ever."""

FAMILIES = {
    "locks": ("hold", "acquire", "release", "try", "locked"),
    "queues": ("put", "get", "get_nowait", "empty"),
    "events": ("set", "clear", "is_set", "wait"),
    "futures": ("finish", "done"),
}


def all_programs(family: str, threads: int, most: int) -> Iterator[ThreadProgram]:
    """Every program of a family with so many threads, of at most so many operations each."""
    texts = [text for length in range(most + 1) for text in product(FAMILIES[family], repeat=length)]
    return product(texts, repeat=threads)


# --- on the simulator -------------------------------------------------------------------------------------------------


class Shared:
    """What the threads share, and the operations on it."""

    def __init__(self) -> None:
        self.lock, self.event = threading.Lock(), threading.Event()
        self.queue: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.future: torch.futures.Future[int] = torch.futures.Future()
        self.held = 0

    def do(self, name: str, me: int) -> object:
        return {
            "hold": self._hold,
            "acquire": self.lock.acquire,
            "try": partial(self.lock.acquire, blocking=False),
            "release": self.lock.release,
            "locked": self.lock.locked,
            "put": partial(self.queue.put, me),
            "get": self.queue.get,
            "get_nowait": self.queue.get_nowait,
            "empty": self.queue.empty,
            "set": self.event.set,
            "clear": self.event.clear,
            "is_set": self.event.is_set,
            "wait": self.event.wait,
            "finish": partial(self.future.set_result, me),
            "done": self.future.done,
        }[name]()

    def _hold(self) -> int:
        with self.lock:
            self.held += 1
            return self.held


def explored(program: ThreadProgram) -> set[str]:
    """What dpor finds that comes of a program: what each thread saw, or STUCK."""
    ended = set()

    def run(rank: int) -> str:
        shared, seen = Shared(), [[] for _ in program]

        def play(me: int) -> None:
            for name in program[me]:
                try:
                    seen[me].append(letter_of(shared.do(name, me)))
                except (RuntimeError, queue.Empty):
                    seen[me].append("E")

        threads = [start(play, me) for me in range(1, len(program))]
        play(0)
        for thread in threads:
            thread.join()
        ended.add(told(seen))
        return told(seen)

    exploration = explore(run, 1, policy="dpor", budget=PLENTY, keep_going=True)
    assert exploration.complete
    outcomes = {outcome.partition("returned ")[::2] for outcome in exploration.outcomes}
    passed = {returned.strip("()'") for judgement, returned in outcomes if judgement.startswith("pass")}
    is_stuck = any(not judgement.startswith("pass") for judgement, _ in outcomes)
    return (ended if passed == {""} else passed) | ({STUCK} if is_stuck else set())


def letter_of(value: object) -> str:
    """What an operation gave, in a letter."""
    return {None: "-", True: "T", False: "F"}[value] if value is None or isinstance(value, bool) else str(value)


def told(seen: Sequence[Sequence[str]]) -> str:
    """What each thread saw."""
    return " ".join("".join(each) or "." for each in seen)


# --- the model --------------------------------------------------------------------------------------------------------


class State(NamedTuple):
    """Of a program under way."""

    at: tuple[int, ...]
    """How many operations each thread has behind it."""
    inside: tuple[str, ...]
    """What each thread is in the middle of: nothing, "waits" for the event, is "woken", or the number it holds."""
    seen: tuple[str, ...]
    is_locked: bool = False
    held: int = 0
    items: tuple[int, ...] = ()
    is_set: bool = False
    is_done: bool = False

    def put(self, me: int, **own: object) -> State:
        """With other values of one thread's."""
        return self._replace(
            **{name: (*getattr(self, name)[:me], new, *getattr(self, name)[me + 1 :]) for name, new in own.items()}
        )

    def ended(self, me: int, value: object = None, *, raises: bool = False, **shared: Any) -> State:
        """A thread's operation is over, and what it gave is seen."""
        seen = self.seen[me] + ("E" if raises else letter_of(value))
        return self.put(me, at=self.at[me] + 1, inside="", seen=seen)._replace(**shared)


def possible(program: ThreadProgram) -> set[str]:
    """All that may come of a program, by the model."""
    nothing = ("",) * len(program)
    first = State((0,) * len(program), nothing, nothing)
    found, states, left = set(), {first}, [first]
    while left:
        state = left.pop()
        open_threads = [me for me, text in enumerate(program) if state.at[me] < len(text)]
        after = {step for me in open_threads if (step := _step(state, me, program[me][state.at[me]])) is not None}
        if not after:
            found.add(STUCK if open_threads else told(state.seen))
        left += after - states
        states |= after
    return found


def _step(state: State, me: int, name: str) -> State | None:
    """One step of a thread; None if it cannot take one."""
    is_free, items, inside = not state.is_locked, state.items, state.inside[me]
    match name:
        case "hold" if inside:
            return state.ended(me, int(inside), raises=is_free, is_locked=False)
        case "hold":
            held = state.held + 1
            return state.put(me, inside=str(held))._replace(is_locked=True, held=held) if is_free else None
        case "acquire":
            return state.ended(me, True, is_locked=True) if is_free else None
        case "try":
            return state.ended(me, is_free, is_locked=True)
        case "release":
            return state.ended(me, raises=is_free, is_locked=False)
        case "locked":
            return state.ended(me, state.is_locked)
        case "put":
            return state.ended(me, items=(*items, me))
        case "get" if not items:
            return None
        case "get" | "get_nowait":
            return state.ended(me, *items[:1], raises=not items, items=items[1:])
        case "empty":
            return state.ended(me, not items)
        case "set":
            woken = tuple("woken" if each == "waits" else each for each in state.inside)
            return state._replace(inside=woken).ended(me, is_set=True)
        case "clear":
            return state.ended(me, is_set=False)
        case "is_set":
            return state.ended(me, state.is_set)
        case "wait" if not state.is_set and inside != "woken":
            return None if inside else state.put(me, inside="waits")
        case "wait":
            return None if inside == "waits" else state.ended(me, True)
        case "finish":
            return state.ended(me, raises=state.is_done, is_done=True)
    return state.ended(me, state.is_done)
