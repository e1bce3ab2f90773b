"""Causes of runs that do not end (stuck, budget), and of hangs of real processes, about which less is known."""

from __future__ import annotations

from ddpsim.simulator.diagnosis.advice.facts import Fact, Nothing, about


class Endings:
    """Causes of runs that do not end (stuck, budget), and of hangs of real processes."""

    # --- what does not end (stuck, budget) ----------------------------------------------------------------------------

    BLOCKED_OUTSIDE = about(Nothing)(
        "it waits in a lock, a socket or native code that only another rank or process can end",
        "use torch.distributed, or its store, to wait for other ranks; if this was only slow, increase the limit: "
        "Budget(stuck_seconds=...)",
    )
    BLOCKED_AT_LOCK = about(Nothing)(
        "it waits for a lock, or for something that Python builds from locks (an event, a queue, an executor), which "
        "the simulation does not control: it was made before the run or during an import, through a name bound before "
        "the run (`from threading import Lock`), or by another process",
        "make it inside the program and by its full name (threading.Lock()); wait for other ranks by torch.distributed"
        " or its store; if this was only slow, increase the limit: Budget(stuck_seconds=...)",
    )
    OUT_OF_TIME = about(Nothing)(
        "the ranks had not finished within the limit; they may or may not have finished later",
        "increase the limit, Budget(seconds=...) or --seconds, or give the ranks less to do",
    )
    ASYNCIO_TURNS = about(Nothing)(
        "an asyncio event loop runs there without end: its coroutines yield to each other forever, or wait for "
        "something that the simulation does not see (a socket, a process), and no other rank can run",
        "let the coroutines end, or wait by calls of torch.distributed, which let the other ranks run",
    )
    OUT_OF_STEPS = about(Nothing)(
        "the ranks communicate without end, or longer than the budget allows",
        "increase the limit, Budget(steps=...) or --steps, or give the ranks less to do",
    )
    POLLS_IN_VAIN = about(Nothing)(
        "the rank polls for something that only ranks which wait or have ended could provide",
        "wait() for the work instead of polling it, or increase the limit: Budget(polls=...)",
    )

    # --- real processes, of which less can be told --------------------------------------------------------------------

    PROCESS_ABORTED = about(Fact)(
        "gloo aborts a process that receives more bytes from another rank than its call expects",
        "`{fact}`, which shows which calls met",
    )
    PROCESS_KILLED = about(Fact)(
        "another process killed it; the operating system does so when memory runs out",
        "look into the system's log; use fewer ranks, or smaller batches",
    )
    PROCESS_CRASHED = about(Fact)(
        "native code crashed, or the program left with os._exit",
        "look at its last output above; `{fact}`, if calls of different sizes may have met",
    )
    PROCESSES_HANG = about(Fact)(
        "a rank waits for something that no other rank does, or does late; real processes cannot show which rank is "
        "wrong",
        "`{fact}`, which simulates it and gives the reason; if that passes, use --alike here, so that ranks start with"
        " the same random numbers; if a rank was only slow, increase --timeout",
    )
