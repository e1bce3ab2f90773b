"""Which step a call belongs to: both engines number synchronising forwards, so that a backward left out is found."""

import contextlib
from functools import partial
from itertools import groupby

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as TorchEngine

from ddpsim import simulate
from ddpsim.ddp import DistributedDataParallel as OwnEngine
from ddpsim.simulator.calls import Phase
from ddpsim.simulator.events import EventKind
from tests.kit.small_training import backward, inputs, network, sgd
from tests.replicas.replica_checks import TwoBranches

pytestmark = [
    pytest.mark.filterwarnings("ignore:find_unused_parameters=True was specified"),
    pytest.mark.filterwarnings("ignore:You passed find_unused_parameters=true to DistributedDataParallel"),
    pytest.mark.filterwarnings("ignore:Your training graph has changed"),
]

ENGINES = {"torch": TorchEngine, "ddp": OwnEngine}
both_engines = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)

OF_A_STEP = (Phase.BUFFERS, Phase.BUCKET, Phase.USED_MAP)


def steps(result):
    """By rank, the steps that its own calls belong to, in order; equal ones that follow each other are one."""
    calls = [event.call for event in result.trace if event.kind is EventKind.ISSUE and event.call is not None]
    own = [call for call in calls if call.origin.phase in OF_A_STEP and not call.origin.shadow]
    return [
        [step for step, _ in groupby(call.origin.step for call in own if call.rank == rank)]
        for rank in range(len(result.returns))
    ]


def run(program, world_size=2, **options):
    result = simulate(program, world_size, check="replicas", **options)
    result.raise_for_verdict()
    assert not result.findings
    return steps(result)


def backward_skipped(rank, engine):
    """By all ranks."""
    model = engine(network())
    optimizer = sgd(model)
    for step in range(4):
        loss = model(inputs(rank)).pow(2).sum()
        if step != 2:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def forwards_under_no_sync(rank, engine):
    model = engine(network())
    for batch in range(6):
        with model.no_sync() if batch % 3 < 2 else contextlib.nullcontext():
            backward(model, rank)


def evaluation_on_one_rank(rank, engine, *, grad):
    model = engine(network())
    for _ in range(3):
        backward(model.train(), rank)
        if rank == 1:
            with torch.set_grad_enabled(grad):
                model.eval()(inputs(rank))
                model(inputs(rank))


def evaluation_whose_outputs_a_backward_reaches(rank, engine):
    model = engine(network())
    for step in range(3):
        loss = model.train()(inputs(rank)).sum()
        if step == 1:
            loss = loss + model.eval()(inputs(rank)).sum()
        loss.backward()


def training_in_evaluation_mode(rank, engine):
    """A further forward, whose output nobody uses, does not count."""
    model = engine(network()).eval()
    for _ in range(2):
        model(inputs(rank))
        backward(model, rank)


def evaluation_after_each_step(rank, engine):
    """The next forward ends the step; as that one follows an evaluation, it sends no buffers."""
    model = engine(network(normalised=True))
    for _ in range(2):
        backward(model.train(), rank)
        with torch.no_grad():
            model.eval()(inputs(rank))


def two_forwards_before_each_backward(rank, engine):
    model = engine(network())
    for _ in range(2):
        (model(inputs(rank)) + model(inputs(rank + 1))).pow(2).sum().backward()


def with_setting_of_the_graph(rank, engine, **options):
    model = engine(TwoBranches(), **options)
    for _ in range(3):
        backward(model, rank)


@both_engines
@pytest.mark.parametrize(
    ("program", "world_size", "counted"),
    [
        (backward_skipped, 3, [1, 2, 4]),
        (forwards_under_no_sync, 2, [1, 2]),
        (partial(evaluation_on_one_rank, grad=True), 3, [1, 2, 3]),
        (partial(evaluation_on_one_rank, grad=False), 3, [1, 2, 3]),
        (evaluation_whose_outputs_a_backward_reaches, 2, [1, 3, 4]),
        (training_in_evaluation_mode, 2, [1, 2]),
        (evaluation_after_each_step, 2, [1, 2]),
        (two_forwards_before_each_backward, 2, [2, 4]),
        (partial(with_setting_of_the_graph, static_graph=True), 2, [1, 2, 3]),
        (partial(with_setting_of_the_graph, find_unused_parameters=True), 2, [1, 2, 3]),
    ],
)
def test_which_forwards_count(engine, program, world_size, counted):
    assert run(lambda rank: program(rank, engine), world_size) == [counted] * world_size


@both_engines
@pytest.mark.parametrize("normalised", [False, True])
def test_after_a_join_all_go_on_from_the_step_of_the_last(engine, normalised):
    def program(rank):
        model = engine(network(normalised=normalised))
        optimizer = sgd(model)
        for epoch in range(2):
            with model.join():
                for _ in range(1 + (rank + epoch) % 3):
                    optimizer.zero_grad()
                    backward(model, rank)
                    optimizer.step()
        backward(model, rank)

    # Three batches of the last rank in each epoch.
    assert run(program, 3, policy="random") == [[1, 4, 5, 7], [1, 2, 4, 5, 6, 7], [1, 2, 3, 4, 7]]


@pytest.mark.parametrize("times", [1, 2])
def test_a_forward_before_an_agreement_to_skip_the_batch_does_not_count(times):
    """Rank 1 runs out of memory before the forward, and on gloo all go on with equal replicas."""

    def program(rank, agrees=True):
        model = TorchEngine(network())
        optimizer = sgd(model)
        for step in range(4):
            optimizer.zero_grad()
            is_short = rank == 1 and step == 2
            losses = [model(inputs(rank)).pow(2).sum() for _ in range(0 if is_short else times if step == 2 else 1)]
            flag = torch.tensor(float(is_short))
            if agrees or is_short:
                dist.all_reduce(flag, dist.ReduceOp.MAX)
            if not flag:
                losses[-1].backward()
                optimizer.step()

    assert run(program) == [[1, 2, 3]] * 2
    result = simulate(partial(program, agrees=False), 2)
    assert [finding.code.value for finding in result.findings] == ["mismatch.shape"]


class FailsOnMuch(torch.nn.Module):
    """A network whose forward raises for a batch of more than four rows, as one that is out of memory."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, batch):
        if len(batch) > 4:
            raise MemoryError
        return self.inner(batch)


def loss_of(model, batch, most):
    out = model(batch)
    if len(out) > most:
        raise MemoryError
    return out.sum()


@both_engines
@pytest.mark.parametrize("how", ["in handler", "after handler", "same line", "loss in handler"])
def test_a_forward_that_raised_and_the_one_in_its_place_are_one_step(how, engine):
    """On gloo all go on with equal replicas."""

    def program(rank):
        most = 4 if how == "loss in handler" else 16
        model = engine(network() if how == "loss in handler" else FailsOnMuch())
        optimizer = sgd(model)
        for step in range(4):
            optimizer.zero_grad()
            few, loss = inputs(rank)[:2], None
            batches = [few.repeat(4, 1), few] if rank == 1 and step in (1, 2) else [few]
            while loss is None:
                try:
                    loss = loss_of(model, batches.pop(0), most)
                except MemoryError:
                    if how.endswith("in handler"):
                        loss = loss_of(model, few, most)
                    elif how == "after handler":
                        break
            if loss is None:
                loss = loss_of(model, few, most)
            loss.backward()
            optimizer.step()

    assert run(program) == [[1, 2, 3, 4]] * 2


@both_engines
@pytest.mark.parametrize("batches", [4, 5])
def test_a_batch_whose_forward_raised_is_missed_at_the_end(batches, engine):
    def program(rank):
        model = engine(FailsOnMuch())
        optimizer = sgd(model)
        for step in range(batches if rank == 1 else 4):
            optimizer.zero_grad()
            with contextlib.suppress(MemoryError):
                model(inputs(rank).repeat(8 if (rank, step) == (1, 1) else 1, 1)[:9]).sum().backward()
                optimizer.step()

    if batches == 5:
        assert run(program) == [[1, 2, 3, 4]] * 2
    else:
        (finding,) = simulate(program, 2).findings
        assert (finding.code.value, finding.ranks) == ("deadlock.missing_rank", (1,))


@both_engines
def test_in_a_handler_around_the_training_a_forward_without_backward_is_a_step(engine):
    def program(rank):
        try:
            raise MemoryError
        except MemoryError:
            model = engine(network())
            for step in range(4):
                loss = model(inputs(rank)).sum()
                if (rank, step) != (1, 1):
                    loss.backward()

    (finding,) = simulate(program, 2).findings
    assert "rank 1 ran more synchronising forwards than the others" in str(finding)


def test_two_forwards_before_one_backward_inside_a_join():
    # torch's joined ranks make up for one.
    def program(rank):
        model = OwnEngine(network())
        for epoch in range(2):
            with model.join():
                for _ in range(1 + (rank + epoch) % 2):
                    backward(lambda x: model(x) + model(x), rank)

    assert run(program) == [[2, 6, 8], [2, 4, 6]]


def test_a_forward_that_ends_a_join_with_an_error_does_not_count():
    # The ranks are even afterwards, as all go on from the same step; with torch's engine they are made so.
    def program(rank):
        model = OwnEngine(network())
        with contextlib.suppress(RuntimeError), model.join(throw_on_early_termination=True):
            for _ in range(1 + rank):
                backward(model, rank)
        backward(model, rank)

    assert run(program, 3) == [[1, 2]] * 3
