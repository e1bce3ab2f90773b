"""The kernel: what a run decides, apart from how its ranks are run. No thread, no torch, no callback of a rank.

A host runs the ranks: as threads of one process (`simulator/runtime`), or as processes. It carries *requests* of ranks
to `Kernel.handle`, one rank at a time, and *answers* back. Both are values that can travel through a pipe; a call is
named by a handle, a small number that counts the calls of its rank, so tensors stay with whoever has them.

The host starts with `Kernel.start`, which says who runs first. From then on, whoever has been given the baton is told
to the kernel by `Kernel.resume`, which answers what that one waited for; and each request of its is handled.

Requests that stand at a choice point, so that others may run first (requests.py has what they carry):

- `Checkpoint`, `Poll`, `Sleep`: nothing but that; before others, before all others, until time has passed;
- `BeginCall`: before a call, where faults strike; `Issue` follows it, and is no choice point of its own;
- `WaitFor`, `IsComplete`: until one of some calls is complete; whether one is; `StoreOperation`: the key-value store;
- `Block`: until a `Wake` of somebody else, for locks, queues and the end of threads;
- `Finish`: a rank's program, or a thread that it started, is over.

Requests that are served at once: `Wake`, `Cancel`, `NameGroup`, `Declare`, `Destroy`, `Missing`, `GiveUp`, `GivenUp`,
`Whereabouts`, `OthersDeliver`, `StartThread`, `SawEnd`, `Touch`, `Release`, `Acquire`, `Note`, `Noticed`, `Agree`,
`LatestStep`, `LoaderBegun`, `Sampled`, `StepDone`, `Raised`, `Returned`; `Announce`, and `Issue`, unless a slot is full
now; and `ReadClock`, unless it turns out to be a poll.

Answers (answers.py): `GoOn` with a value, `Unwind`, `Strike` (a fault), `Refuse` (an error for the caller), `Switch`:
the caller waits, and the baton goes to somebody else. And what the host has to do before the request goes on, with what
it says then: `Deliver` a completion on the caller's own thread (`Delivered`), `Move` the data of calls that have met
(`Moved`), `TellStack` of the caller (`StackTold`), `LookOutside` for threads that are none of a rank's (`Looked`). It
says so by `Kernel.reply`; if it cannot do it, `Kernel.drop` gives the request up.

A request is served by a script, a generator that yields the answers on the way. So what a wait does, from its choice
point to its last event, is read from top to bottom, and the scripts of a caller make a stack: what runs inside
`Deliver` may ask for more.
"""

from ddpsim.simulator.kernel.kernel import Kernel

__all__ = ["Kernel"]
