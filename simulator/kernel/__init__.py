"""The kernel decides what happens in a run. It uses no thread and no torch, and calls no code of a rank.

A host runs the ranks: as threads of one process (`simulator/runtime`), or as processes. It carries *requests* of ranks
to `Kernel.handle`, one rank at a time, and *answers* back. Both are values that can travel through a pipe. A call is
identified by a handle, a small number that counts the calls of its rank. So tensors stay in the rank that owns them.

The host begins with `Kernel.first_task`, which returns the task that runs first. Each time a task gets the baton (the
right to run), the host calls `Kernel.resume_task`, which returns the answer that the task waited for. Then the host
passes on the task's requests.

Requests at a choice point, where other tasks may run first (their fields are in requests.py):

- `Checkpoint`: other tasks may run; `Poll`: all others run first; `Sleep`: until virtual time has passed;
- `BeginCall`: before a call, where faults strike; `IssueCall` follows it, and has no choice point of its own;
- `WaitFor`: wait until one of some calls is complete; `IsComplete`: test one; `StoreOperation`: the key-value store;
- `Block`: wait for another task's `WakeTask`, for locks, queues and the end of threads;
- `FinishTask`: a rank's program, or a thread that it started, has ended.

All other requests are served at once, except that `AnnounceGroup` and `IssueCall` may complete a collective, and that
`ReadClock` may count as a poll.

Answers (answers.py): `Continue` with a value, `Unwind` (the program must end early), `RaiseFault` (a fault),
`RejectRequest` (an error for the caller), `SwitchTask` (the caller waits, and another task gets the baton). Other
answers ask the host for work, each with its reply: `DeliverCompletion` a completion on the caller's own thread
(`DeliveredCompletion`), `MoveTensors` the data of matched calls (`MovedTensors`), `ReportStack`: the caller's stack
(`StackReport`), `AwaitExternalThreads`: wait for threads that belong to no rank (`AwaitedExternalThreads`). The host
replies by `Kernel.reply`. If it cannot do the work, it gives the request up by `Kernel.drop_request`.

A script, a generator that yields the intermediate answers, serves a request. So the steps of a wait, from its choice
point to its last event, can be read from top to bottom. The scripts of a caller form a stack, because code that runs
inside `DeliverCompletion` may make further requests.
"""

from ddpsim.simulator.kernel.kernel import Kernel

__all__ = ["Kernel"]
