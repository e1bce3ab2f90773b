"""Causes: what does not end (stuck, budget), and real processes, of which less can be told."""

from __future__ import annotations

from ddpsim.simulator.diagnosis.advice.facts import Fact, Nothing, about


class Endings:
    """What does not end (stuck, budget), and real processes, of which less can be told."""

    # --- what does not end (stuck, budget) ----------------------------------------------------------------------------

    BLOCKED_OUTSIDE = about(Nothing)(
        "it waits in a lock, a socket or native code that only another rank or process can end",
        "use torch.distributed, or its store, to wait for other ranks; if this was only slow, raise "
        "Budget(stuck_seconds=...)",
    )
    BLOCKED_AT_LOCK = about(Nothing)(
        "it waits for a lock, or for what Python makes of locks (an event, a queue, an executor), that the simulation "
        "does not have: made before the run or in an import, by a name bound before the run (`from threading import "
        "Lock`), or of another process",
        "make it inside the program and by its full name (threading.Lock()); wait for other ranks by torch.distributed "
        "or its store; if this was only slow, raise Budget(stuck_seconds=...)",
    )
    OUT_OF_TIME = about(Nothing)(
        "the ranks had not come to an end, and may or may not have gone on to one",
        "raise Budget(seconds=...), or give the ranks less to do",
    )
    ASYNCIO_TURNS = about(Nothing)(
        "an event loop of asyncio turns there: its coroutines give way to each other without end, or wait for what the "
        "simulation does not see (a socket, a process), and no other rank runs meanwhile",
        "let the coroutines end, or wait by calls of torch.distributed, which let the other ranks run",
    )
    OUT_OF_STEPS = about(Nothing)(
        "the ranks communicate without end, or longer than the budget lets them",
        "raise Budget(steps=...), or give the ranks less to do",
    )
    POLLS_IN_VAIN = about(Nothing)(
        "what the rank polls for can only come from ranks that wait or have ended",
        "wait() for the work instead of polling it, or raise Budget(polls=...)",
    )

    # --- real processes, of which less can be told --------------------------------------------------------------------

    PROCESS_ABORTED = about(Fact)(
        "gloo ends a process that gets more bytes from another rank than its call expects",
        "`{fact}`, which tells what met what",
    )
    PROCESS_KILLED = about(Fact)(
        "somebody killed it: the system does, where memory runs out",
        "look into the system's log; take fewer ranks, or smaller batches",
    )
    PROCESS_CRASHED = about(Fact)(
        "native code crashed, or the program left with os._exit",
        "look at its last words above; `{fact}`, if calls of another size may have met",
    )
    PROCESSES_HANG = about(Fact)(
        "a rank waits for what no other one does, or does late; real processes cannot tell which is wrong",
        "`{fact}`, which simulates it and says why; if that passes, --alike here, which lets ranks start with the same "
        "random numbers; if a rank was only slow, raise --timeout",
    )
