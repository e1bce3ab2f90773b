"""Causes of findings: exceptions, threads, endless runs, real processes (rank_error, stuck, budget, deadlock.*)."""

from ddpsim.simulator.diagnosis.advice import facts
from ddpsim.simulator.diagnosis.advice.facts import make_advice


class FailureCauses:
    """Causes of findings: exceptions, threads, endless runs, real processes (rank_error, stuck, budget, deadlock.*)."""

    # --- what a rank raised (rank_error, deadlock.dead_rank) ----------------------------------------------------------

    DIED = make_advice(facts.Ranks)(
        "{who} left by an exception, and the others wait for calls that will never be made",
        "fix the exception; in production, abort the group on an error so that its peers end too",
    )
    CALLS_ON_ITS_WAY_OUT = make_advice(facts.RanksCallAndFact)(
        "{who} {fact}, and code that ran after the exception (`finally`, `__exit__`, a handler that raises again, "
        "or an atexit handler) made {operation} while the other ranks continued without an exception",
        "fix the exception, which is shown above; do not communicate in cleanup code after an exception",
    )
    RAISED = make_advice(facts.RanksAndParameters)(
        "an exception left the program of {who}",
        "fix this exception first; ranks that still wait may wait only because of it",
    )
    LAUNCHER_RAISED = make_advice(facts.NoFacts)(
        "an exception left the program that starts the ranks; the ranks have ended without one",
        "fix this exception, which is raised outside the ranks",
    )
    RAISED_AND_STILL_THERE = make_advice(facts.RanksAndParameters)(
        "{who} raised this exception, and code that ran after it (`finally`, `__exit__`, a handler that raises "
        "again, or an atexit handler) had not ended when the run ended",
        "fix this exception first; ranks that still wait may wait only because of it",
    )
    RAISED_IN_FLIGHT = make_advice(facts.RanksAndCall)(
        "{who} raised the exception before the wait for {operation}: until then the output tensors of a "
        "call are poisoned, and hold NaN or the largest number of their type",
        "wait() for a call before its tensors are read; if they were not read, fix the exception",
    )
    RAISED_OVER_UNDEFINED = make_advice(facts.RanksAndCall)(
        "{who} raised the exception where a tensor of {operation} holds NaN: on ranks other than its "
        "destination a reduce may leave anything there",
        "use the result of a reduce on its destination only; if it was not used, fix the exception",
    )
    PROCESS_GONE = make_advice(facts.Ranks)(
        "{who} ended without an exception, and the others wait for calls that will never be made",
        "find out what ended it, as shown above; in production let the launcher end the other ranks too",
    )
    EXITED = make_advice(facts.RanksAndParameters)(
        "the program of {who} ended its process itself, by os._exit or by exit() in native code: no `finally` and no "
        "`except` ran, and no reason was given",
        "look at the code that decides this, and at the last output of the rank; raise an exception, or call sys.exit,"
        " so that the reason is shown and cleanup code runs",
    )
    PROCESS_ENDED = make_advice(facts.RanksAndParameters)(
        "the process of {who} ended in the middle of its program, and Python could not report why",
        "look at its last output; python -X faulthandler shows where native code crashes, and the system's log shows "
        "processes killed for lack of memory",
    )
    NO_STORE_THERE = make_advice(facts.RanksAndParameters)(
        "no store listened there in time for {who}",
        "under torchrun leave MASTER_ADDR and MASTER_PORT as they are: its agent has the store; elsewhere make one on "
        "one rank, with is_master=True and the same port",
    )
    STORE_SERVER_ENDED = make_advice(facts.RanksAndParameters)(
        "the rank that made the store's server (is_master=True) had ended its program when {who} still used the store",
        "let that rank wait for a key that each other rank sets when it is done with the store",
    )
    ADDRESSES_OF_ATTEMPT = make_advice(facts.RanksAndParameters)(
        "torchrun's agent keeps its store between attempts, and {who} took from it an address that a rank left there "
        "which has ended since; whether this happens depends on which rank comes first (pytorch#135712)",
        "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun (and here), so that each attempt has a new store",
    )
    OLD_ADDRESSES = make_advice(facts.RanksAndParameters)(
        "groups leave their addresses in the store when they are destroyed, and {who} read an old one before its owner "
        "had written the new one; in another schedule this may go well",
        "let each group that is made after a destroy have a prefix (PrefixStore), file or store of its own",
    )
    RAISED_IN_HOOK = make_advice(facts.RanksAndParameters)(
        "a hook that the backward calls raised on {who}, because its state has another size than the gradients now",
        "keep state by parameter, not by bucket index: after the first step the wrapper rebuilds its buckets",
    )
    NO_GRADIENT_IN_JOIN = make_advice(facts.RanksAndParameters)(
        "{who} ran out of input before it had a sparse gradient, which torch's join needs to reduce the others'",
        "use dense gradients (sparse=False), or give every rank a batch before it joins",
    )
    CALL_REFUSED = make_advice(facts.OneFact)(
        "the call's arguments are invalid; the message says what was found and what was expected",
        "{fact}",
    )
    FAULT_INJECTED = make_advice(facts.RanksAndParameters)(
        "the fault plan crashes {who} here",
        "look at how the other ranks ended; to run without the crash, remove it from `faults`",
    )
    UNUSED_PARAMETERS = make_advice(facts.RanksAndParameters)(
        "in the step before, {parameters} got no gradient, so the bucket was never reduced",
        "pass find_unused_parameters=True to DistributedDataParallel, or let every parameter take part in the loss; if "
        "an exception ended that backward, let it end the program, or share a flag and let all ranks skip the step",
    )
    READY_TWICE = make_advice(facts.RanksAndParameters)(
        "a parameter was ready twice in one backward: it got its gradient twice (reentrant checkpointing, a layer used "
        "twice), or find_unused_parameters=True took it as unused: the loss uses it outside forward (a regulariser), "
        "or forward returns an object in which DDP finds no tensors",
        "compute such a term of the loss in forward, and return tensors, in tuples, lists or dictionaries; use "
        "checkpoint(..., use_reentrant=False), or static_graph=True if every step is alike",
    )
    UNUSED_IN_STATIC_GRAPH = make_advice(facts.RanksAndParameters)(
        "in the step before, {parameters} got no gradient, which static_graph=True does not allow",
        "leave static_graph out, with find_unused_parameters=True if not every step uses all of them",
    )
    GRAPH_CHANGED = make_advice(facts.RanksAndParameters)(
        "static_graph=True promises that every step uses the same parameters, and this one used others than the first",
        "leave static_graph out, with find_unused_parameters=True if not every step uses all of them",
    )
    BACKWARD_NOT_ANNOUNCED = make_advice(facts.RanksAndParameters)(
        "a backward ran that the Reducer did not expect: no forward through the wrapper precedes it, or "
        "static_graph=True met no_sync() in the first step",
        "compute the loss through the wrapper, not model.module, once for each backward; with static_graph=True, leave "
        "no_sync() out of the first step",
    )
    BUFFERS_OVERWRITTEN = make_advice(facts.RanksAndParameters)(
        "a tensor that the backward needs was changed in place, as a second forward does when it broadcasts buffers",
        "run one forward on the combined batches, or pass broadcast_buffers=False",
    )
    LOSS_DETACHED = make_advice(facts.RanksAndParameters)(
        "the loss of {who} does not depend on any parameter: its path to them ends at a detach(), at no_grad(), or at "
        "a call such as all_gather, whose results have no gradient",
        "let it depend on the model's output, multiplied by zero where there is nothing to learn; for a gradient "
        "through a call, use torch.distributed.nn.functional, or put the rank's own tensor back into the gathered list",
    )
    NOTHING_TO_TRAIN = make_advice(facts.RanksAndParameters)(
        "no parameter of the model required a gradient when it was wrapped",
        "leave it unwrapped, and unfreeze parameters before wrapping",
    )
    PARAMETERS_CHANGED = make_advice(facts.RanksAndParameters)(
        "{parameters} changed after the model was wrapped: frozen, unfrozen, replaced or added",
        "do it on every rank before wrapping, or wrap the model again",
    )
    TOO_SMALL_A_BATCH = make_advice(facts.RanksAndParameters)(
        "{who} got a batch too small for this layer, of one sample or none, as happens with a last batch",
        "drop the last batch (drop_last=True), or share samples so that every rank has more than one",
    )
    GROUP_RANK_IN_BACKWARD = make_advice(facts.RanksAndParameters)(
        "a backward passes a rank within the group as a global one, as those of torch.distributed.nn.functional do",
        "on a group other than the world, use torch.distributed._functional_collectives or a torch.autograd.Function",
    )
    GROUP_RANK_AS_ROOT = make_advice(facts.RanksAndParameters)(
        "src and dst are global ranks, and a rank within the group was given, or one that is no member",
        "pass group_src or group_dst, or translate with dist.get_global_rank(group, rank)",
    )
    INITIALISED_TWICE = make_advice(facts.RanksAndParameters)(
        "the program initialises the default group, which the simulator has already initialised",
        "leave init_process_group out, or guard it with `if not dist.is_initialized():`",
    )
    SYNC_BATCH_NORM_ON_CPU = make_advice(facts.RanksAndParameters)(
        "torch's SyncBatchNorm trains on GPUs only, and its layers or inputs are on the CPU on {who}",
        "move model and inputs to the GPU (`ddpsim run --gpus N FILE.py` has virtual ones); a model that only "
        "evaluates needs no GPU after model.eval(), unwrapped",
    )
    ONE_GPU_FOR_TWO = make_advice(facts.RanksAndParameters)(
        "two ranks of one machine bring tensors of the same GPU, and NCCL wants a GPU for each rank",
        "call torch.cuda.set_device(local_rank) first, and make tensors and models on that device, not on cuda:0",
    )
    TENSOR_NOT_ON_GPU = make_advice(facts.RanksAndParameters)(
        "{who} passed a tensor of the CPU to a group that has no backend for the CPU",
        'move the tensor or the model to the GPU first, or make the group with "cpu:gloo,cuda:nccl"',
    )
    TRITON_MISSING = make_advice(facts.RanksAndParameters)(
        "the program imports triton, which is not installed",
        "pip install triton: that is enough if no kernel is launched; virtual GPUs run none",
    )
    NEEDS_GPU = make_advice(facts.OneFact)(
        "{fact}; virtual GPUs run no code for GPUs",
        "take the path without it (eager) where there is no GPU; TRITON_INTERPRET=1 runs kernels of triton on the CPU",
    )
    GROUP_GONE = make_advice(facts.RanksAndParameters)(
        "the default group is used after destroy_process_group(), or outside a rank's program",
        "destroy the group last, when no rank communicates any more",
    )
    BARRIER_MISSED = make_advice(facts.RanksCallAndFact)(
        "{who} had not reached {operation} after {fact}; the ranks that raise reached it, and waited",
        "look at what {who} did instead, and let every rank reach it; increase the timeout if a rank is only slow",
    )
    CONNECTION_CLOSED = make_advice(facts.RanksAndFact)(
        "{who} {fact}; gloo then closes the connections, and calls that need them fail on every rank",
        "let {who} wait until its calls are complete; increase the timeout if a rank is only slow",
    )
    BARRIER_WITHOUT_TIME = make_advice(facts.RanksAndCall)(
        "{who} called {operation} with a timeout of 0, which leaves no time for other ranks to arrive",
        "use a timeout in which every rank can arrive, or wait_all_ranks=True, for which 0 means no limit",
    )
    THROWN_BY_JOIN = make_advice(facts.RanksAndParameters)(
        "{who} ran out of input, and throw_on_early_termination=True ends the loop of all ranks by an error",
        "catch it on every rank, around the join; or leave the option out, and the others train on",
    )
    ROOT_HAS_JOINED = make_advice(facts.RanksAndParameters)(
        "{who} ran out of input, and the others make a call whose data only a rank that left its loop could provide",
        "choose a root that has input; if a sharded optimizer makes the call, list it in torch's Join together with "
        "the model, or use a replicated one",
    )
    JOIN_BROKEN = make_advice(facts.RanksAndParameters)(
        "the ranks inside the join disagree, or one left it, as the message says",
        "let every rank enter the join with the same models and leave it at its end",
    )

    # --- threads of a rank (deadlock.threads, hazard.thread_error) ----------------------------------------------------

    LOCKS_IN_OTHER_ORDER = make_advice(facts.Ranks)(
        "threads of {who} take locks in different orders (a lock order inversion); each holds one that another needs",
        "take the locks in one order everywhere, or use one lock instead",
    )
    LOCK_TAKEN_TWICE = make_advice(facts.Ranks)(
        "a thread of {who} asks for a lock that it already holds",
        "use threading.RLock, which counts, or release the lock before the code that takes it again",
    )
    LOCK_HELD_IN_WAIT = make_advice(facts.Ranks)(
        "threads of {who} wait for each other: one for a lock, whose holder waits for what only the first can do",
        "release the lock before waiting for a thread, an event, a queue or other ranks",
    )
    NOBODY_ACTS = make_advice(facts.Ranks)(
        "every thread of {who} that could set, notify, put or release is itself waiting, or has ended",
        "do it on every path, after an exception too (`finally`, `with`), or wait with a timeout",
    )
    THREAD_RAISED = make_advice(facts.RanksAndParameters)(
        "an exception ends the thread that raised it, and {who} continued without that thread",
        "keep the exception and raise it where the thread is joined; an executor does so: call result() of each future",
    )

    # --- what does not end (stuck, budget) ----------------------------------------------------------------------------

    BLOCKED_OUTSIDE = make_advice(facts.NoFacts)(
        "it waits in a lock, a socket or native code that only another rank or process can end",
        "wait for other ranks by torch.distributed; if this was only slow, increase Budget(stuck_seconds=...)",
    )
    BLOCKED_AT_LOCK = make_advice(facts.NoFacts)(
        "it waits for a lock (or an event, a queue, an executor) that the simulation does not control: it was made "
        "before the run or during an import, through a name bound before the run, or by another process",
        "make it inside the program and by its full name (threading.Lock()); wait for other ranks by torch.distributed"
        " or its store; if this was only slow, increase the limit: Budget(stuck_seconds=...)",
    )
    FILE_LOCK_HELD = make_advice(facts.NoFacts)(
        "a file lock is held by a rank that waits for something else, so neither can go on",
        "release the file lock before a call that waits for other ranks",
    )
    BUILD_NEVER_ENDS = make_advice(facts.NoFacts)(
        "the lock file of an extension that torch builds is still there: a build that was killed left it, or another "
        "process builds now",
        "delete the lock file if nothing builds the extension; torch waits for ever until it is gone",
    )
    COMPILES = make_advice(facts.NoFacts)(
        "torch.utils.cpp_extension runs the compiler, and the ranks wait for it",
        "increase the limit, --seconds or Budget(seconds=...); what is built once is kept in TORCH_EXTENSIONS_DIR",
    )
    OUT_OF_TIME = make_advice(facts.NoFacts)(
        "the ranks had not finished within the limit; they may or may not have finished later",
        "increase the limit, Budget(seconds=...) or --seconds, or give the ranks less to do",
    )
    ASYNCIO_TURNS = make_advice(facts.NoFacts)(
        "an asyncio event loop runs there without end: its coroutines yield to each other forever, or wait for "
        "something that the simulation does not see (a socket, a process), and no other rank can run",
        "let the coroutines end, or wait by calls of torch.distributed, which let the other ranks run",
    )
    OUT_OF_STEPS = make_advice(facts.NoFacts)(
        "the ranks communicate without end, or longer than the budget allows",
        "increase the limit, Budget(steps=...) or --steps, or give the ranks less to do",
    )
    POLLS_IN_VAIN = make_advice(facts.NoFacts)(
        "the rank polls for something that only ranks which wait or have ended could provide",
        "wait() for the work instead of polling it, or increase the limit: Budget(polls=...)",
    )
    SEEN_IN_WAIT = make_advice(facts.NoFacts)(
        "on gloo is_completed() of a send or receive stays False until wait(), and that of a reduce_scatter for ever",
        "call wait() instead, in a thread of its own if the rank has other work meanwhile",
    )
    SLEEPS_IN_VAIN = make_advice(facts.NoFacts)(
        "a loop that sleeps seems to wait for something, such as a file or a key, that no other rank will provide: all "
        "others wait, have ended or sleep in such a loop",
        "if it looks for a file, give the file one name on all ranks: a process id or a time differs; if the loop ends "
        "by itself, increase the limit: Budget(polls=...)",
    )

    # --- real processes, of which less can be told --------------------------------------------------------------------

    PROCESS_ABORTED = make_advice(facts.OneFact)(
        "gloo aborts a process that receives more bytes from another rank than its call expects",
        "`{fact}`, which shows which calls were matched",
    )
    PROCESS_KILLED = make_advice(facts.OneFact)(
        "another process killed it; the operating system does so when memory runs out",
        "look into the system's log; use fewer ranks, or smaller batches",
    )
    PROCESS_CRASHED = make_advice(facts.OneFact)(
        "native code crashed, or the program left with os._exit",
        "look at its last output above; `{fact}`, if calls of different sizes may have been matched",
    )
    PROCESSES_HANG = make_advice(facts.OneFact)(
        "a rank waits for something that no other rank does, or does late; processes cannot show which rank is wrong",
        "`{fact}`, which simulates it and gives the reason; if that passes, use --alike here, so that ranks start with"
        " the same random numbers; if a rank was only slow, increase --timeout",
    )
