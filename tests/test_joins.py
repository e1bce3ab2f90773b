"""Who joined when, what was shadowed and whose model was kept: read from the traces of both engines.

The counts are worked out from what the engines send. For each iteration that a joined rank shadows:

torch   a count of ranks with input and whether to synchronise (2 join control), a call for each bucket and used map;
        for buffers whose they are (1 join control), and a broadcast for each dtype; two calls to rebuild buckets.
ours    a round for the forward and one before each other call (join control), and the calls: for each bucket, used map
        and buffer dtype, and one to rebuild buckets.

Buckets are rebuilt in the second iteration, so that who has at least two batches shadows no rebuild.
"""

import contextlib
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join as TorchJoin
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as TorchEngine

from ddpsim import Verdict, simulate
from ddpsim.ddp import DistributedDataParallel as OwnEngine
from ddpsim.ddp import Join as OwnJoin
from ddpsim.simulator.events import Event, EventKind
from ddpsim.simulator.joins import JoinedRank, JoinSummary, find_joins
from ddpsim.simulator.trace import Trace
from tests.kit.running import run

pytestmark = [
    pytest.mark.filterwarnings("ignore:find_unused_parameters=True was specified"),
    pytest.mark.filterwarnings("ignore:You passed find_unused_parameters=true to DistributedDataParallel"),
]

ENGINES = {"torch": TorchEngine, "ddp": OwnEngine}
JOINS = {"torch": TorchJoin, "ddp": OwnJoin}
both_engines = pytest.mark.parametrize("engine", ENGINES)

TWO_BUCKETS = {"bucket_cap_mb": 1e-6}
"""Each parameter has a bucket of its own, once buckets are rebuilt."""


def linear(engine, **options):
    torch.manual_seed(0)
    return ENGINES[engine](torch.nn.Linear(2, 1), **options)


def normalised(engine):
    torch.manual_seed(0)
    return ENGINES[engine](torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))


def backward(model, rank):
    model(torch.arange(8.0).reshape(4, 2) + rank).pow(2).sum().backward()


def train(rank, make, *epochs, accumulate=1):
    """In each epoch a rank has as many batches as its count says."""
    model = make()
    for counts in epochs:
        with model.join():
            for batch in range(counts[rank]):
                with contextlib.nullcontext() if (batch + 1) % accumulate == 0 else model.no_sync():
                    backward(model, rank)


def read(result):
    """Of each join: who is authoritative, and what each rank did, in the order in which they joined."""
    return [
        (joining.authoritative, [(each.rank, each.step, dict(each.shadowed)) for each in joining.ranks])
        for joining in result.joins
    ]


def shadows(control, buckets, **others):
    return {"join control": control, "bucket": buckets} | {name.replace("_", " "): n for name, n in others.items()}


@both_engines
def test_uneven_inputs(engine):
    result = run(lambda rank: train(rank, lambda: linear(engine), (2, 4, 3)), 3)
    assert read(result) == [(1, [(0, 2, shadows(4, 2)), (2, 3, shadows(2, 1)), (1, 4, {})])]
    assert [joined.calls for joined in result.joins[0].ranks] == [6, 3, 0]
    assert str(result).splitlines()[1:-1] == [
        "  join    rank 0 joined at step 2, shadowed 6 calls (4 join control, 2 buckets)",
        "  join    rank 2 joined at step 3, shadowed 3 calls (2 join control, 1 bucket)",
        "  join    rank 1 was the last to join, at step 4: its model is kept",
    ]


@both_engines
@pytest.mark.parametrize("seed", range(4))
def test_the_schedule_changes_nothing(engine, seed):
    def program(rank):
        train(rank, lambda: normalised(engine), (2, 4, 3, 4), (3, 0, 1, 2))

    result = run(program, 4, policy="random", seed=seed)
    assert result.joins == run(program, 4).joins


# What is trained on how many batches, and what rank 0 shadows from step 2 on: control by engine, buckets, others.
SHADOWED = {
    # Two rounds more of ours, as each bucket has one.
    "several buckets": (partial(linear, **TWO_BUCKETS), (2, 4), {"torch": 4, "ddp": 6}, 4, {}),
    # Two dtypes: the running mean and variance, and the count of batches.
    "buffers": (normalised, (2, 4), {"torch": 2 * 3, "ddp": 2 * (1 + 2 + 1)}, 2, {"buffers": 4}),
    "unused": (
        partial(linear, find_unused_parameters=True),
        (2, 4),
        {"torch": 2 * 2, "ddp": 2 * 3},
        2,
        {"used_map": 2},
    ),
    # Rank 0 shadows four forwards, of which two synchronise.
    "micro-batches under no_sync are no steps": (linear, (4, 8), {"torch": 4 * 2, "ddp": 4 + 2}, 2, {}),
}


@both_engines
@pytest.mark.parametrize("case", SHADOWED)
def test_what_a_rank_with_half_as_many_batches_shadows(engine, case):
    make, counts, control, buckets, others = SHADOWED[case]
    result = run(lambda rank: train(rank, lambda: make(engine), counts, accumulate=counts[0] // 2), 2)
    assert read(result) == [(1, [(0, 2, shadows(control[engine], buckets, **others)), (1, 4, {})])]


@both_engines
def test_a_rank_without_a_batch(engine):
    result = run(lambda rank: train(rank, lambda: linear(engine), (0, 2)), 2)
    shadowed = {"torch": shadows(4, 2, rebuild=2), "ddp": shadows(4 + 1, 2, rebuild=1)}[engine]
    assert read(result) == [(1, [(0, 0, shadowed), (1, 2, {})])]


@both_engines
def test_of_several_last_ranks_the_highest_is_authoritative(engine):
    result = run(lambda rank: train(rank, lambda: linear(engine), (3, 2, 3, 2)), 4)
    assert read(result) == [(2, [(1, 2, shadows(2, 1)), (3, 2, shadows(2, 1)), (0, 3, {}), (2, 3, {})])]
    assert str(result).splitlines()[1:-1] == [
        "  join    ranks 1, 3 joined at step 2, shadowed 3 calls each (2 join control, 1 bucket)",
        "  join    ranks 0, 2 were the last to join, at step 3: the model of rank 2 is kept",
    ]


@both_engines
def test_equal_inputs(engine):
    result = run(lambda rank: train(rank, lambda: linear(engine), (2, 2, 2)), 3)
    assert read(result) == [(2, [(0, 2, {}), (1, 2, {}), (2, 2, {})])]
    assert str(result.joins[0]) == "  join    ranks 0-2 were the last to join, at step 2: the model of rank 2 is kept"


def test_two_forwards_before_one_backward_are_two_steps():
    # Rank 0 shadows two forwards and one bucket; torch's join makes up for one forward.
    def program(rank):
        model = linear("ddp")
        with model.join():
            for _ in range(1 + rank):
                backward(lambda inputs: model(inputs) + model(inputs), rank)

    assert read(run(program, 2)) == [(1, [(0, 2, shadows(2 + 1 + 1, 1, rebuild=1)), (1, 4, {})])]


@both_engines
def test_the_second_epoch_goes_on_from_where_all_were(engine):
    result = run(lambda rank: train(rank, lambda: linear(engine), (2, 4), (0, 1), (3, 2)), 2)
    assert read(result) == [
        (1, [(0, 2, shadows(4, 2)), (1, 4, {})]),
        (1, [(0, 4, shadows(2, 1)), (1, 5, {})]),
        (0, [(1, 7, shadows(2, 1)), (0, 8, {})]),
    ]


@both_engines
def test_two_models(engine):
    # torch counts ranks for the first model only.
    def program(rank):
        first, second = linear(engine), linear(engine)
        with JOINS[engine]([first, second]):
            for _ in range(2 + 2 * rank):
                backward(first, rank)
                backward(second, rank)

    control = {"torch": 2 * (2 + 1), "ddp": 2 * (2 + 2)}[engine]
    assert read(run(program, 2)) == [(1, [(0, 2, shadows(control, 4)), (1, 4, {})])]


def test_of_two_models_the_one_with_more_steps_tells_how_far_a_rank_came():
    def program(rank):
        generator, critic = linear("ddp"), linear("ddp")
        with OwnJoin([generator, critic]):
            for _ in range(2 + rank):
                for model in (critic, critic, generator):
                    backward(model, rank)

    assert read(run(program, 2)) == [(1, [(0, 4, shadows(6, 3)), (1, 6, {})])]


def test_a_context_of_torch_s_that_is_used_again():
    def program(rank):
        model = linear("torch")
        join = model.join()
        for count in (2 + rank, rank):
            with join:
                for _ in range(count):
                    backward(model, rank)

    steps = [[(each.rank, each.step) for each in joining.ranks] for joining in run(program, 2).joins]
    assert steps == [[(0, 2), (1, 3)], [(0, 3), (1, 4)]]


@both_engines
def test_a_sharded_optimizer_in_torchs_join(engine):
    # It sends each parameter from the rank that has it in its shard. Inside torch's join our engine holds rounds for
    # the forward, the bucket and the end of the iteration, beside torch's own count.
    def program(rank):
        model = linear(engine)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        with TorchJoin([model, optimizer]):
            for _ in range(2 + 2 * rank):
                optimizer.zero_grad()
                backward(model, rank)
                optimizer.step()

    control = {"torch": 2 * 2, "ddp": 2 * (1 + 3)}[engine]
    result = run(program, 2)
    assert read(result) == [(1, [(0, 2, shadows(control, 2, user=2 * 2)), (1, 4, {})])]
    assert "2 buckets" in str(result)
    assert "4 of the user's program" in str(result)


def test_a_joinable_behind_another_one_counts_for_itself():
    # Two models of ours in torch's join: torch counts for the first, the second asks for itself.
    def program(rank):
        models = linear("ddp"), linear("ddp")
        with TorchJoin(models):
            for _ in range(2 + 2 * rank):
                for model in models:
                    backward(model, rank)

    assert read(run(program, 2)) == [(1, [(0, 2, shadows(2 * 2 * (1 + 3), 4)), (1, 4, {})])]


def test_what_the_loop_calls_itself_is_shadowed_by_our_engine():
    def program(rank):
        model = linear("ddp")
        with model.join():
            for _ in range(2 + rank):
                backward(model, rank)
                dist.all_reduce(torch.ones(1))

    assert read(run(program, 2)) == [(1, [(0, 2, shadows(3, 1, user=1)), (1, 3, {})])]


@both_engines
def test_each_group_has_its_own_join(engine):
    def program(rank):
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        train(rank, lambda: linear(engine, process_group=groups[rank // 2]), (2, 3, 5, 4))

    result = run(program, 4)
    assert read(result) == [
        (1, [(0, 2, shadows(2, 1)), (1, 3, {})]),
        (2, [(3, 4, shadows(2, 1)), (2, 5, {})]),
    ]
    assert len({joining.group for joining in result.joins}) == 2


@both_engines
def test_a_join_that_is_ended_early_keeps_no_model(engine):
    # The rank that ran out says so: torch's in two calls, ours in a round. The forward that this ended was a step of
    # torch's already; ours counts it after the round.
    def program(rank):
        model = linear(engine)
        for count in (2 + rank, rank):
            with contextlib.suppress(RuntimeError), model.join(throw_on_early_termination=True):
                for _ in range(count):
                    backward(model, rank)

    result = run(program, 2)
    said = {"join control": {"torch": 2, "ddp": 1}[engine]}
    assert read(result) == [(None, [(0, 2, said)]), (None, [(0, {"torch": 3, "ddp": 2}[engine], said)])]


def test_a_join_that_fails_is_told_as_far_as_it_came():
    # torch's join does not shadow the loop's own call: the count after the iteration meets it.
    def program(rank):
        model = linear("torch")
        with model.join():
            for _ in range(2 + rank):
                backward(model, rank)
            if rank:
                dist.all_reduce(torch.ones(2, 2))

    result = simulate(program, 2)
    assert result.verdict is Verdict.FAIL
    assert read(result) == [(None, [(0, 2, shadows(2, 1))])]
    joined, replayed = str(result).splitlines()[-2:]
    assert joined == "  join    rank 0 joined at step 2, shadowed 3 calls (2 join control, 1 bucket)"
    assert replayed.startswith("  replay  ")


@both_engines
def test_ranks_that_leave_by_an_exception_do_not_join(engine):
    # torch's leaves the other ranks waiting: the last count is answered by nobody. Ours takes part in the calls of the
    # iteration, and says in the next round that it leaves.
    def program(rank):
        model = linear(engine)
        with model.join():
            for _ in range(3):
                backward(model, rank)
                if rank == 1:
                    raise ValueError("broken")
                if rank == 0:
                    break

    result = simulate(program, 3)
    assert result.verdict is Verdict.FAIL
    assert [each.rank for joining in result.joins for each in joining.ranks] == [0]
    assert [joining.authoritative for joining in result.joins] == [None]


def test_a_join_without_a_model_has_no_steps_to_tell():
    joining = JoinSummary("default", (JoinedRank(0, None, (("user", 1),)), JoinedRank(1, None)))
    assert str(joining) == (
        "  join    rank 0 joined, shadowed 1 call (1 of the user's program)\n  join    rank 1 joined"
    )


def test_a_run_that_ends_before_the_first_call_tells_nothing():
    assert find_joins(Trace((Event(EventKind.NOTE, 0, 0, 0.0, text="joined at step 3"),))) == ()
