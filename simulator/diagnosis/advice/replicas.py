"""Causes: replicas that differ, or differ from plain training (divergence.*), and runs that cannot be repeated."""

from __future__ import annotations

from ddpsim.simulator.diagnosis.advice.facts import Fact, Nothing, Ranks, about


class Replicas:
    """Replicas that differ, or differ from plain training, and runs that do (divergence.*, nondeterminism)."""

    # --- replicas (divergence.*) --------------------------------------------------------------------------------------

    INNER_MODULE_TRAINED = about(Nothing)(
        "no synchronising forward went through the wrapper, so nothing averaged the gradients",
        "call the wrapper, not its inner module, for the loss",
    )
    NOT_IN_A_BUCKET = about(Fact)(
        "{fact} is in no bucket: it required no gradient when the model was wrapped, or was replaced since",
        "wrap the model again after unfreezing or replacing parameters",
    )
    STEP_WITHOUT_SYNCHRONISATION = about(Nothing)(
        "no synchronising forward preceded this optimizer step, so each rank applied gradients of its own",
        "synchronise in the last micro-batch of every window, the short one at the end included: no_sync() has to end "
        "before its forward, which decides whether the backward reduces",
    )
    BACKWARD_AFTER_REDUCTION = about(Nothing)(
        "a backward ran when this step's reduction was over, a second one over its graph or another's, and "
        "its gradients stayed each rank's own",
        "add the losses up and run one backward, or run each backward before the next forward",
    )
    PARAMETERS_IN_OTHER_ORDER = about(Ranks)(
        "the model of {who} has its parameters in another order; a wrapper pairs them by position, so values and "
        "gradients go to those of other names",
        "register the layers in one order on every rank: sort their names, and iterate over no set",
    )
    READ_BEFORE_WAIT = about(Fact)(
        "{fact} had not been waited for: until then its tensor holds the rank's own value on some ranks, and the "
        "result on others",
        "wait() for the work before the tensor is read",
    )
    BUCKET_NOT_REDUCED = about(Fact)(
        "{fact} was not reduced in this step, as some parameter in it got no gradient",
        "pass find_unused_parameters=True, or let every parameter take part in the loss",
    )
    STEP_SKIPPED = about(Fact)(
        "{fact}: a rank that decides this by a rule of its own lets its parameters and optimizer lag behind",
        "share the decision: all_reduce(MIN) a flag, and let all ranks step or skip together",
    )
    STARTED_APART = about(Nothing)(
        "the parameters differed before the first step already: wrapped with init_sync=False, or loaded or initialised "
        "after wrapping, not alike on all ranks",
        "leave init_sync=False out, or seed alike; load or initialise before wrapping, which sends rank 0's, or alike "
        "on every rank",
    )
    CHANGED_BETWEEN_STEPS = about(Nothing)(
        "the parameters differed before this step already: since the step before they were loaded, averaged or "
        "changed on some ranks only, or not alike",
        "change parameters on every rank alike, or broadcast them from the rank that does",
    )
    GRADIENTS_CHANGED = about(Nothing)(
        "the parameters were equal before this step, and the gradients that it applied were not: some ranks scaled, "
        "clipped or changed them alone, or a communication hook gave ranks different ones",
        "share what gradients are scaled or clipped by, by an all_reduce of it, and apply it on every rank",
    )
    OPTIMIZER_DIFFERS = about(Nothing)(
        "parameters and gradients were equal before this step, and the optimizer made unequal steps of them: its "
        "learning rate or its state (such as momentum) differs",
        "load the optimizer's state on every rank, which no wrapper sends; let a schedule follow a metric that all "
        "ranks have alike",
    )
    NOTHING_COMPARED = about(Nothing)(
        "replicas are known by a DistributedDataParallel around them, by an all_reduce of their gradients (each, or "
        "all of a module in one flat tensor) or of the parameters themselves, which hold what came of it, or as "
        "DTensors placed as Replicate; nothing of this came up on two ranks",
        "wrap the model, or leave the check out; whoever takes what there is says replicas-if-any",
    )
    CHANGED_BY_HAND = about(Nothing)(
        "no optimizer of torch's made the step in between: a step written by hand, or by another optimizer, was of "
        "unequal numbers, or parameters were changed on some ranks only",
        "step by what all ranks have alike: the averaged gradients, one learning rate, one state",
    )
    CHANGED_LAST = about(Nothing)(
        "the parameters were equal when they were compared last, and changed once more: by a last step, by a state "
        "that was loaded, or by hand, not alike on all ranks",
        "change parameters on every rank alike, or change a copy of the model where only one rank needs it",
    )
    REPLICATED_DTENSORS_DIFFER = about(Nothing)(
        "the mesh has this DTensor as replicated along the group, and its ranks have other values: a gradient of which "
        "each has a part was taken for a replicated one, or they began with other values",
        "place such a gradient as Partial(), or reduce it, before the optimizer steps; make the weights by "
        "distribute_tensor, which sends those of one rank, or from one seed",
    )
    NOT_REDUCED_BESIDE = about(Nothing)(
        "the mesh has this dimension for data parallelism, the DTensors lie on its other dimensions only, and nothing "
        "makes the gradients or the parameters equal along it",
        "shard or replicate along it too (fully_shard(model, mesh=mesh[...]), a wrapper), or all_reduce the local "
        "gradients on its group before the optimizer steps",
    )
    APART_BY_HAND = about(Nothing)(
        "the program reduces the gradients itself, and the models started apart, or their steps were of unequal "
        "numbers: nothing else makes replicas equal",
        "broadcast the parameters of one rank before the first step, reduce every gradient, and step alike",
    )
    AVERAGED_BY_HAND = about(Nothing)(
        "the program averages the parameters itself, and the ranks made different ones of the same sum",
        "divide by the number of ranks on each of them, and write the average back everywhere",
    )
    GRADIENTS_DIFFER = about(Nothing)(
        "a synchronised backward leaves all ranks with the same gradients: some were changed since, or a hook on a "
        "parameter changed them",
        "share what gradients are scaled or clipped by, by an all_reduce of it, and apply it on every rank",
    )
    BUFFERS_IN_OTHER_ORDER = about(Ranks)(
        "the model of {who} has its buffers under other names or in another order; a wrapper pairs them by position, "
        "so values go to those of other names",
        "register buffers in one order on every rank: sort their names, and iterate over no set",
    )
    BUFFERS_IN_EVALUATION = about(Nothing)(
        "each rank updates its buffers in its own forward; only a forward through the wrapper makes them equal",
        "evaluate through the wrapper, or broadcast those of one rank or average them first",
    )
    BUFFER_HOOK_DIFFERS = about(Nothing)(
        "the buffer hook did not leave all ranks with the same values",
        "let the hook give every rank one result",
    )
    BUFFERS_NOT_SYNCHRONISED = about(Nothing)(
        "the buffers differed when training began, and nothing synchronises them",
        "leave broadcast_buffers=False out, or broadcast them by hand",
    )

    # --- what differs from plain training (divergence.*) --------------------------------------------------------------

    SCALED = about(Fact)(
        "every element of all that differs is {fact} times what plain training gives: a loss or a hook scales or "
        "divides once too often or not at all, or the sum is divided by another number of ranks",
        "the wrapper divides by the world size: multiply the loss by it where it is one loss over what all ranks "
        "gathered, and let a hook that sums divide",
    )
    JOINED_STEPPED = about(Ranks)(
        "{who} ran out of input, and torch's join makes up for the calls of a joinable such as a sharded optimizer, "
        "but brings no averaged gradients: a rank that has joined updates its shard with those of its own last batch",
        "use an optimizer that is whole on every rank inside a join, or give every rank as many batches",
    )
    JOINED_WITH_USED_MAP = about(Ranks)(
        "{who} ran out of input, and torch's join sends an old map of used parameters there: those that nobody "
        "uses get gradients of zero in place of none, and momentum or decay moves them",
        "leave the join out, and let every rank make every step, with a loss weighted by zero where it has no input",
    )
    JOINED_WITH_BUFFERS = about(Ranks)(
        "{who} ran out of input, and torch's join calls the buffer hook there as well, with buffers that stand still",
        "let the hook weigh a rank by zero once its loop is over",
    )
    JOINED_DIVISOR = about(Ranks)(
        "{who} ran out of input, and the average is over other ranks than in plain training: a communication hook, "
        "and every model of a join but the first, divide by the world size, whatever divide_by_initial_world_size says",
        "choose divide_by_initial_world_size as plain training weighs ranks, use no communication hook (or one that "
        "divides so itself), and give each model a join of its own",
    )
    OTHER_COUNT = about(Nothing)(
        "what the ranks put together is not what one process counts: a sampler repeats samples so that shares are "
        "even, or means over unequal numbers of samples are averaged",
        "gather what each sample gives, in the sampler's order, and cut off what comes after the last one; add up sums "
        "and counts, and divide at the end",
    )
    OTHER_THAN_PLAIN_TRAINING = about(Nothing)(
        "the ranks do not train on what one process would on all their batches: samples are seen twice or never, or "
        "means over unequal numbers of samples are averaged as if they were equal",
        "shuffle with the same seed on every rank before sharing out, cut off what a sampler repeats, and weigh each "
        "rank's loss by its samples",
    )
    REDUCED_BY_HAND = about(Nothing)(
        "what the ranks reduce by hand is not what one process computes: reductions meet by their order and size, so "
        "gradients of different parameters may be added, and nothing divides by the ranks or weighs their samples",
        "reduce in the order of the parameters, not in that in which gradients come, and divide by what plain training "
        "divides by",
    )
    OTHER_ON_SOME_RANKS = about(Ranks)(
        "what {who} received or computed is not what plain training gives, though no calls that met disagree",
        "look at what no wrapper makes equal: modules outside of it (broadcast them, or seed alike), the order of "
        "messages, the root of a broadcast, changes of one rank",
    )
    NO_NUMBER = about(Nothing)(
        "a loss or gradient that is no number came up on some rank, and averaging hands it to all",
        "leave such a batch out on all ranks alike, by an all_reduce(MAX) of isnan(loss); drop batches that are empty",
    )

    # --- what cannot be repeated (nondeterminism) ---------------------------------------------------------------------

    RUNS_DIFFER = about(Ranks)(
        "{who} did something else under the same schedule, by what a run leaves behind for the next (a counter or "
        "cache of a module or class, a file), by the order of a set or of id(), or by a clock or generator that the "
        "operating system keeps",
        "make such state inside the program, sort before looping over a set, and seed every generator; then run it "
        "with check_determinism=True again",
    )
