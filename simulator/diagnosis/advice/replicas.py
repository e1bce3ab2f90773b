"""Causes of wrong numbers: replicas that differ, nondeterminism, and code that may fail elsewhere (hazard.*)."""

from ddpsim.simulator.diagnosis.advice.facts import NoFacts, OneFact, Ranks, make_advice


class WrongNumberCauses:
    """Causes of wrong numbers: replicas that differ, nondeterminism, and code that may fail elsewhere (hazard.*)."""

    # --- replicas (divergence.*) --------------------------------------------------------------------------------------

    INNER_MODULE_TRAINED = make_advice(NoFacts)(
        "no synchronising forward went through the wrapper, so nothing averaged the gradients",
        "call the wrapper, not its inner module, for the loss",
    )
    NOT_IN_A_BUCKET = make_advice(OneFact)(
        "{fact} is in no bucket: it required no gradient when the model was wrapped, or was added or replaced since",
        "wrap the model again after unfreezing, adding or replacing parameters",
    )
    STEP_WITHOUT_SYNCHRONISATION = make_advice(NoFacts)(
        "no synchronising forward preceded this optimizer step, so each rank applied gradients of its own",
        "synchronise in the last micro-batch of every window, the short one at the end included: no_sync() has to end "
        "before its forward, which decides whether the backward reduces",
    )
    STEPPED_IN_BACKWARD = make_advice(NoFacts)(
        "the optimizer stepped during the backward, such as in a parameter's hook, before all gradients were reduced",
        "step after the backward has ended",
    )
    LAST_BACKWARD_LOCAL = make_advice(NoFacts)(
        "the last backward did not reduce its gradients: its forward ran under no_sync(), or with "
        "require_backward_grad_sync=False",
        "end no_sync(), or set require_backward_grad_sync, before the forward of the last micro-batch, which decides",
    )
    BACKWARD_AFTER_REDUCTION = make_advice(NoFacts)(
        "a second backward, over this or another graph, ran after this step's reduction, and was not reduced",
        "add the losses up and run one backward, or run each backward before the next forward",
    )
    PARAMETERS_IN_OTHER_ORDER = make_advice(Ranks)(
        "the model of {who} has its parameters in another order; a wrapper matches them by position, not by name",
        "register the layers in one order on every rank: sort their names, and do not iterate over a set",
    )
    READ_BEFORE_WAIT = make_advice(OneFact)(
        "{fact} had not been waited for: until then its tensor holds the rank's own input on some ranks, the result on "
        "others",
        "wait() for the work before the tensor is read",
    )
    NO_BACKWARD = make_advice(NoFacts)(
        "no backward() reached the wrapper's parameters in this step, so nothing was reduced; torch.autograd.grad "
        "fires no hook of DDP",
        "call loss.backward(), or reduce the gradients that torch.autograd.grad returns by calls of your own",
    )
    GRADIENTS_UNSEEN = make_advice(NoFacts)(
        "a bucket was not reduced in this step, although its parameters got gradients: DDP did not see all of them",
        "wrap a model anew after .cpu() or .to(); let forward return tensors, in tuples, lists or dictionaries",
    )
    BUCKET_NOT_REDUCED = make_advice(OneFact)(
        "{fact}",
        "pass find_unused_parameters=True, without static_graph, or let every parameter contribute to the loss",
    )
    STEP_SKIPPED = make_advice(OneFact)(
        "{fact}: a rank that decides this by itself lets its parameters and optimizer fall behind",
        "share the decision: all_reduce(MIN) a flag, and let all ranks step or skip together",
    )
    STEPPED_BY_PARTS = make_advice(OneFact)(
        "the optimizers of the ranks step unlike parameters, and after the last of these steps nothing made {fact} "
        "equal",
        "broadcast each parameter, the last one too, from the rank whose optimizer steps it",
    )
    STARTED_APART = make_advice(NoFacts)(
        "the parameters already differed before the first step: the model was wrapped with init_sync=False, or "
        "parameters were loaded, initialised or changed after wrapping, differently on some ranks",
        "remove init_sync=False, or use the same seed; load or initialise before wrapping, which sends the values of "
        "rank 0, or do so identically on every rank; take a change of one rank back from a copy, as subtracting rounds",
    )
    CHANGED_BETWEEN_STEPS = make_advice(NoFacts)(
        "the parameters already differed before this step: after the step before, they were loaded, averaged or "
        "changed on some ranks only, or differently",
        "change parameters identically on every rank, or broadcast them from the rank that changes them",
    )
    GRADIENTS_CHANGED = make_advice(NoFacts)(
        "the parameters were equal before this step, but the gradients that it applied were not: some ranks scaled, "
        "clipped or changed them alone, or a communication hook gave the ranks different ones",
        "if they are scaled or clipped, share the factor by an all_reduce of it, and apply it on every rank; if a hook "
        "averages in smaller groups, average the parameters of all ranks from then on",
    )
    OPTIMIZER_DIFFERS = make_advice(NoFacts)(
        "parameters and gradients were equal before this step, but the optimizer made unequal steps: its class, its "
        "learning rate or its state (such as momentum) differs",
        "make the same optimizer on all ranks, with equal learning rates, and load its state on every rank, since no "
        "wrapper sends it",
    )
    NOTHING_COMPARED = make_advice(NoFacts)(
        "ddpsim finds replicas by a DDP wrapper, by an all_reduce of each gradient, of a module's flat gradients or of "
        "the parameters, or as DTensors placed as Replicate; none of these appeared on two ranks",
        "wrap the model, or leave the check out; replicas-if-any compares replicas only if there are any",
    )
    CHANGED_BY_HAND = make_advice(NoFacts)(
        "no torch optimizer made the step in between: a step of another kind used gradients, learning rates or "
        "optimizer state that differ between ranks, or parameters were changed on some ranks only",
        "compute the step from values that are equal on all ranks: averaged gradients, learning rate, optimizer state",
    )
    CHANGED_LAST = make_advice(NoFacts)(
        "the parameters were equal at the last comparison, then changed differently: by a step, by loading or by hand",
        "change parameters identically on every rank, or change a copy of the model if only one rank needs the change",
    )
    REPLICATED_DTENSORS_DIFFER = make_advice(NoFacts)(
        "the mesh declares this DTensor replicated along the group, and its ranks hold different values: a gradient of"
        " which each rank has a part was treated as replicated, or the initial values differed",
        "place such a gradient as Partial(), or reduce it, before the optimizer steps; create the weights by "
        "distribute_tensor, which sends those of one rank, or from one seed",
    )
    NOT_REDUCED_BESIDE = make_advice(NoFacts)(
        "the DTensors do not use this data-parallel mesh dimension, and nothing makes gradients or parameters equal on "
        "it",
        "shard or replicate along it too (fully_shard(model, mesh=mesh[...]), a wrapper), or all_reduce the local "
        "gradients on its group before the optimizer steps",
    )
    APART_BY_HAND = make_advice(NoFacts)(
        "the initial models differed, or their steps used gradients, learning rates or optimizer state that differ "
        "between ranks",
        "broadcast the parameters of one rank before the first step, reduce every gradient, and make identical steps",
    )
    AVERAGED_BY_HAND = make_advice(NoFacts)(
        "the program averages the parameters itself, and the ranks computed different averages from the same sum",
        "divide by the number of ranks on each rank, and write the average back everywhere",
    )
    GRADIENTS_DIFFER = make_advice(NoFacts)(
        "a synchronised backward makes gradients equal on all ranks: some were changed later, or by a parameter's hook",
        "share the factor that gradients are scaled or clipped by, by an all_reduce of it, and apply it on every rank",
    )
    BUFFERS_IN_OTHER_ORDER = make_advice(Ranks)(
        "the model of {who} has its buffers under other names or in another order; a wrapper matches by position",
        "register buffers in one order on every rank: sort their names, and do not iterate over a set",
    )
    BUFFERS_IN_EVALUATION = make_advice(NoFacts)(
        "each rank updates its buffers in its own forward; only a forward through a wrapper makes them equal, and "
        "not with broadcast_buffers=False",
        "evaluate through a wrapper without that option, or first broadcast the buffers of one rank or average them",
    )
    BUFFER_HOOK_DIFFERS = make_advice(NoFacts)(
        "the buffer hook did not leave all ranks with the same values",
        "let the hook give every rank one result",
    )
    BUFFERS_NOT_SYNCHRONISED = make_advice(NoFacts)(
        "the buffers differed when training began, and nothing synchronises them",
        "remove broadcast_buffers=False, or broadcast them by hand",
    )

    # --- what differs from plain training (divergence.*) --------------------------------------------------------------

    SCALED = make_advice(OneFact)(
        "every element that differs is {fact} times its value in plain training: a loss or a hook scales or divides "
        "once too often or not at all, or the sum is divided by another number of ranks",
        "the wrapper divides by the world size: multiply the loss by it if the loss covers the samples gathered from "
        "all ranks, and divide in a hook that sums",
    )
    JOINED_STEPPED = make_advice(Ranks)(
        "{who} ran out of input; torch's join repeats the calls of a sharded optimizer without averaged gradients: a "
        "rank that has joined updates its shard with the gradients of its own last batch",
        "inside a join, use an optimizer that is whole on every rank, or give every rank the same number of batches",
    )
    JOINED_WITH_USED_MAP = make_advice(Ranks)(
        "{who} ran out of input, and torch's join sends an old map of used parameters there: parameters that no rank "
        "uses get gradients of zero instead of none, and momentum or decay changes them",
        "do not use the join; let every rank make every step, with a loss weight of zero where it has no input",
    )
    JOINED_WITH_BUFFERS = make_advice(Ranks)(
        "{who} ran out of input, and torch's join still calls the buffer hook there, with unchanged buffers",
        "let the hook give a rank the weight zero after its loop has ended",
    )
    JOINED_DIVISOR = make_advice(Ranks)(
        "{who} ran out of input, and the average is over other ranks than in plain training: a communication hook, and"
        " every model of a join except the first, divide by the world size, regardless of divide_by_initial_world_size",
        "set divide_by_initial_world_size to match how plain training weighs ranks, use no communication hook (or one "
        "that divides that way), and give each model a join of its own",
    )
    OTHER_COUNT = make_advice(NoFacts)(
        "what the ranks combine is not what one process counts: a sampler repeats samples to make shares equal, or "
        "means over unequal numbers of samples are averaged",
        "gather a value per sample in the sampler's order, drop those after the last sample, add up sums and counts, "
        "and divide at the end",
    )
    OTHER_THAN_PLAIN_TRAINING = make_advice(NoFacts)(
        "the ranks together do not train on what one process would train on with all their batches: samples are seen "
        "twice or never, or means over unequal numbers of samples are averaged as if they were equal",
        "shuffle with the same seed on every rank before the data is split, drop what a sampler repeats, and weigh "
        "each rank's loss by its number of samples",
    )
    REDUCED_BY_HAND = make_advice(NoFacts)(
        "what the ranks reduce by hand is not what one process computes: gradients of different parameters may be "
        "added, as calls are matched by order and size, and nothing divides by the ranks or weighs their samples",
        "reduce in the order of the parameters, not in the order in which gradients arrive, and divide as plain "
        "training does",
    )
    OTHER_ON_SOME_RANKS = make_advice(Ranks)(
        "what {who} received or computed differs from plain training, although all matched calls agree",
        "look at what no wrapper makes equal: modules outside of it (broadcast them, or use the same seed), the order "
        "of messages, the root of a broadcast, changes on one rank",
    )
    NO_NUMBER = make_advice(NoFacts)(
        "a loss or gradient was NaN or infinite on some rank, and averaging spreads it to all ranks",
        "leave such a batch out on all ranks, by an all_reduce(MAX) of isnan(loss); drop empty batches",
    )

    # --- what cannot be repeated (nondeterminism) ---------------------------------------------------------------------

    RUNS_DIFFER = make_advice(Ranks)(
        "{who} behaved differently under the same schedule; causes are state that one run leaves for the next (a "
        "counter, a cache, a file), the order of a set or of id(), or a clock or generator of the operating system",
        "create such state inside the program, sort before iterating over a set, and seed every generator; then run it "
        "with check_determinism=True again",
    )

    # --- code that passes here, but may fail elsewhere (hazard.*) -----------------------------------------------------

    GROUP_ORDER = make_advice(OneFact)(
        "ranks use groups {fact} in different orders: NCCL, unlike gloo, can hang: one group's call blocks the other's",
        "let all ranks use their groups in the same order",
    )
    NEVER_WAITED_FOR = make_advice(NoFacts)(
        "nothing guarantees that the data has moved when the rank continues or ends; on a real backend it may not have",
        "keep the work and call wait() on it before the tensor is used and before the rank ends",
    )
    HOOK_DID_NOT_WAIT = make_advice(NoFacts)(
        "the future that a communication hook returned did not wait for it: a real backend may still be running when "
        "the gradients are taken from the bucket",
        "return work.get_future().then(...) from the hook, or wait() for the work in it",
    )
    CHANGED_IN_FLIGHT = make_advice(NoFacts)(
        "a real backend reads and writes the tensor any time until the wait, so either value may be sent or kept",
        "wait() for the work first, or work on a copy",
    )
    READ_IN_FLIGHT = make_advice(OneFact)(
        "a real backend writes the tensor any time until the wait, so either value may be read; here the tensor holds "
        "NaN, or a number near the largest, until then, and that value appears in {fact}",
        "wait() for the work before the tensor is read or copied",
    )
    READ_AT = make_advice(OneFact)(
        "a real backend writes the tensor any time until the wait, so either value may be read at {fact}",
        "wait() for the work before the tensor is read or copied",
    )
    READ_UNDEFINED = make_advice(OneFact)(
        "on ranks other than its destination a reduce may leave anything in the tensor: gloo leaves partial sums, NCCL"
        " the old value; here the tensor holds NaN, or a number near the largest, and that value appears in {fact}",
        "use the result on the destination only, or use all_reduce if every rank needs it",
    )
    NAMES_MEET = make_advice(NoFacts)(
        "one call combines values of different names: the ranks iterate over them in different orders (of a set, a "
        "loaded state, a dictionary filled in another order, or with a count that is ahead on a rank), or took "
        "different branches",
        "sort the names, and iterate in that order on every rank; make the call for every name on every rank, with "
        "zero where a rank has no value; if the names differ on purpose, this is no mistake",
    )
    SHARED_IN_FLIGHT = make_advice(NoFacts)(
        "a real backend reads and writes the tensors of both calls any time until the waits, in either order",
        "wait() for the first call before the second is made, or give each call a tensor of its own",
    )
    DROPPED_RESULT = make_advice(NoFacts)(
        "the line of the call makes the copy, the call changes it in place, and nothing refers to it afterwards",
        "give the copy a name, pass that, and use it after the call; for a barrier, call barrier()",
    )
    OUTPUTS_SHARED = make_advice(NoFacts)(
        "the outputs are written over one another, so the memory that they share holds what was written last",
        "give each output memory of its own: [torch.empty_like(t) for _ in range(n)], not [torch.empty_like(t)] * n",
    )
    LINES_MEET = make_advice(NoFacts)(
        "the ranks took different branches, and their calls still agree",
        "if these calls are not supposed to be matched, let every rank make the same calls in the same order",
    )
    SAMPLERS_OF_OTHER_EPOCHS = make_advice(NoFacts)(
        "each rank takes its part of another permutation: in this epoch some samples are read twice, others never",
        "call sampler.set_epoch(epoch) on every rank before each epoch, with the same number",
    )
    SAMPLERS_DIFFER = make_advice(OneFact)(
        "each sampler computes its rank's part by itself, and the parts fit together only if the {fact} is the same: "
        "as it is, a sample may be read twice or by no rank",
        "create the sampler with the same {fact} on every rank",
    )
    SAMPLERS_OF_ONE_RANK = make_advice(NoFacts)(
        "several ranks read the same part of the samples, and no rank reads another part",
        "give DistributedSampler the rank in the whole world, dist.get_rank(), or leave it out",
    )
    PROCESS_SHARED = make_advice(NoFacts)(
        "ranks are threads of one process here, and each sees what another left; in a real job each is a process",
        'run each rank as a process: isolation="process" (--isolation process), or run the program itself, ddpsim run '
        "FILE.py",
    )
