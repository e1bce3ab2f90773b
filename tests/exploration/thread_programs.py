"""Small programs of the threads of a rank as values: run on the simulator, and on a model of what Python's do.

A program is a tuple of threads, the rank's main one first, each a tuple of names of operations. They share a lock, a
queue, an event and a future. The model knows nothing of the simulator: its steps are what the documentation of
`threading` and `queue` says of these objects, and a lock that is given back goes to anybody who asks.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
    "reentrant locks": ("enter", "try_enter", "leave"),
    "semaphores": ("down", "try_down", "up"),
    "conditions": ("await", "await_flag", "notify", "tell", "look"),
    "barriers": ("meet", "abort"),
    "bounded queues": ("put_in", "try_put_in", "take_out", "try_take_out", "is_empty"),
    "executors": ("submit", "result", "is_done", "shut_down"),
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
        self.semaphore, self.condition, self.barrier = (
            threading.Semaphore(),
            threading.Condition(),
            threading.Barrier(2),
        )
        self.reentrant = threading.RLock()
        self.bounded: queue.Queue[int] = queue.Queue(1)
        self.flag = False
        self._executor: ThreadPoolExecutor | None = None
        self._submitted: dict[int, Future[int]] = {}

    @property
    def executor(self) -> ThreadPoolExecutor:
        """One worker; made when it is asked for first."""
        self._executor = self._executor or ThreadPoolExecutor(1)
        return self._executor

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
            "enter": self.reentrant.acquire,
            "try_enter": partial(self.reentrant.acquire, blocking=False),
            "leave": self.reentrant.release,
            "down": self.semaphore.acquire,
            "try_down": partial(self.semaphore.acquire, blocking=False),
            "up": self.semaphore.release,
            "await": partial(self._under_condition, self.condition.wait),
            "await_flag": partial(self._under_condition, partial(self.condition.wait_for, lambda: self.flag)),
            "notify": partial(self._under_condition, self.condition.notify),
            "tell": partial(self._under_condition, self._tell),
            "look": partial(self._under_condition, lambda: self.flag),
            "meet": self.barrier.wait,
            "abort": self.barrier.abort,
            "put_in": partial(self.bounded.put, me),
            "try_put_in": partial(self.bounded.put_nowait, me),
            "take_out": self.bounded.get,
            "try_take_out": self.bounded.get_nowait,
            "is_empty": self.bounded.empty,
            "submit": partial(self._submit, me),
            "result": lambda: self._submitted[me].result(),
            "is_done": lambda: self._submitted[me].done(),
            "shut_down": lambda: self.executor.shutdown(wait=False),
        }[name]()

    def _under_condition(self, act: Callable[[], object]) -> object:
        with self.condition:
            return act()

    def _tell(self) -> None:
        self.flag = True
        self.condition.notify_all()

    def _submit(self, me: int) -> None:
        self._submitted[me] = self.executor.submit(self._work)

    def _work(self) -> int:
        self.held += 1
        return self.held

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
                except (RuntimeError, KeyError, queue.Empty, queue.Full):
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
    passed = {returned.strip("()',") for judgement, returned in outcomes if judgement.startswith("pass")}
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
    items: tuple[Any, ...] = ()
    is_set: bool = False
    is_done: bool = False
    value: int = 1
    """Of the semaphore."""
    entered: tuple[int, ...] = ()
    """Who is inside the reentrant lock, as often as it is."""
    is_broken: bool = False
    """The barrier."""
    is_shut: bool = False
    """The executor; its jobs are the items, each by its thread and number."""
    results: tuple[tuple[tuple[int, int], int], ...] = ()

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
        after |= _work(state)
        if not after:
            found.add(STUCK if open_threads else told(state.seen))
        left += after - states
        states |= after
    return found


def _work(state: State) -> set[State]:
    """The step of the executor's worker, if it has anything to do."""
    if not state.items or isinstance(state.items[0], int):
        return set()
    held = state.held + 1
    return {state._replace(held=held, items=state.items[1:], results=(*state.results, (state.items[0], held)))}


def _step(state: State, me: int, name: str) -> State | None:
    """One step of a thread; None if it cannot take one."""
    for family, step in _STEPS.items():
        if name in FAMILIES[family]:
            return step(state, me, name)
    return _simple_step(state, me, name)


def _semaphore_step(state: State, me: int, name: str) -> State | None:
    if name == "up":
        return state._replace(value=state.value + 1).ended(me)
    if not state.value:
        return None if name == "down" else state.ended(me, False)
    return state._replace(value=state.value - 1).ended(me, True)


def _condition_step(state: State, me: int, name: str) -> State | None:
    waits = [thread for thread, inside in enumerate(state.inside) if inside == "waits"]
    match name:
        case "look":
            return state.ended(me, state.is_set)
        case "notify" | "tell":
            for thread in waits if name == "tell" else waits[:1]:
                state = state.put(thread, inside="woken")
            return state.ended(me, is_set=state.is_set or name == "tell")
        case "await" if state.inside[me] == "woken":
            return state.ended(me, True)
        case "await_flag" if state.inside[me] != "waits" and state.is_set:
            return state.ended(me, True)
    return None if state.inside[me] == "waits" else state.put(me, inside="waits")


def _barrier_step(state: State, me: int, name: str) -> State | None:
    inside = state.inside[me]
    if name == "abort":
        return state.ended(me, is_broken=True)
    if state.is_broken:
        return state.ended(me, raises=True)
    if inside:
        return state.ended(me, 0) if inside == "goes" else None
    if "goes" in state.inside:
        return None  # until all have gone
    if "waits" in state.inside:
        return state.put(state.inside.index("waits"), inside="goes").ended(me, 1)
    return state.put(me, inside="waits")


def _bounded_step(state: State, me: int, name: str) -> State | None:
    if name == "is_empty":
        return state.ended(me, not state.items)
    is_put = name.endswith("put_in")
    if bool(state.items) is is_put:
        return state.ended(me, raises=True) if name.startswith("try") else None
    return state.ended(me, items=(me,)) if is_put else state.ended(me, *state.items, items=())


def _executor_step(state: State, me: int, name: str) -> State | None:
    results = dict(state.results)
    jobs = [job for job in (*state.items, *results) if job[0] == me]
    match name:
        case "shut_down":
            return state.ended(me, is_shut=True)
        case "submit" if state.is_shut:
            return state.ended(me, raises=True)
        case "submit":
            return state.ended(me, items=(*state.items, (me, len(jobs))))
    if not jobs:
        return state.ended(me, raises=True)
    if name == "is_done":
        return state.ended(me, max(jobs) in results)
    return state.ended(me, results[max(jobs)]) if max(jobs) in results else None


def _reentrant_step(state: State, me: int, name: str) -> State | None:
    entered = state.entered
    if name == "leave":
        return state.ended(me, raises=me not in entered, entered=entered[1:] if me in entered else entered)
    if entered and me not in entered:
        return None if name == "enter" else state.ended(me, False)
    return state.ended(me, True, entered=(*entered, me))


_STEPS = {
    "reentrant locks": _reentrant_step,
    "semaphores": _semaphore_step,
    "conditions": _condition_step,
    "barriers": _barrier_step,
    "bounded queues": _bounded_step,
    "executors": _executor_step,
}


def _simple_step(state: State, me: int, name: str) -> State | None:
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
