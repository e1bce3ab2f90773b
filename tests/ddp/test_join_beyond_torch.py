"""What torch's join cannot do: buffers, several models, evaluation, samples, and collectives of the program's own."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join as TorchJoin

from ddpsim.ddp import DistributedDataParallel, Join
from tests.ddp.loop_collectives import COLLECTIVES, Inputs, assert_made, made, values
from tests.kit import networks, oracle
from tests.kit.rows import rows
from tests.kit.running import linear, row, run
from tests.kit.training import TINY, Training, batches, equal_batches, mean_square, seeded, steps, train
from tests.tiers import sweep

COUNTS = [(1, 3), (3, 1), (0, 2, 3), (3, 0, 1, 2)]
pytestmark = pytest.mark.filterwarnings("ignore:`torch.distributed.(all_gather_into|reduce_scatter)_tensor")
each_counts = pytest.mark.parametrize("counts", COUNTS, ids=str)


# Buffers.

REDUCTIONS = {
    "sum": sum,
    "mean": lambda values: sum(values) / len(values),
    "max": max,
    "min": min,
    "broadcast": lambda values: values[-1],
    "none": None,
}


class Keeps(nn.Module):
    """Has a buffer that the test sets before each forward and the model reads in it."""

    def __init__(self):
        super().__init__()
        self.layer = linear()
        self.register_buffer("kept", torch.zeros(1, dtype=torch.float64))
        self.seen = []

    def forward(self, batch):
        self.seen.append(self.kept.item())
        return self.layer(batch)


def value(rank, iteration):
    return float((5 * rank + 3 * iteration) % 7 - 3)


@each_counts
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("strategy", REDUCTIONS)
def test_reductions_of_buffers_leave_joined_ranks_out(strategy, when, counts):
    def program(rank):
        module = Keeps()
        model = DistributedDataParallel(module)
        model.register_buffer_comm_hook("kept", strategy, when=when)
        found = []
        with model.join():
            for iteration in range(counts[rank]):
                module.kept.fill_(value(rank, iteration))
                model(row(1, 2)).sum().backward()
                found.append(module.kept.item())
        return found, module.seen

    result = run(program, len(counts))
    for rank, (after, inside) in enumerate(result.returns):
        for iteration in range(counts[rank]):
            present = [value(r, iteration) for r, count in enumerate(counts) if iteration < count]
            own = value(rank, iteration)
            expected = own if strategy == "none" else REDUCTIONS[strategy](present)
            assert after[iteration] == expected
            assert inside[iteration] == (expected if when == "before" else own)


@each_counts
@pytest.mark.parametrize("is_future", [False, True], ids=["work", "future"])
def test_a_callable_for_a_buffer_leaves_joined_ranks_out(counts, is_future):
    def largest(buffer, group):
        work = dist.all_reduce(buffer, dist.ReduceOp.MAX, group=group, async_op=True)
        return work.get_future() if is_future else work

    def program(rank):
        module = Keeps()
        model = DistributedDataParallel(module)
        model.register_buffer_comm_hook("kept", largest)
        with model.join():
            for _ in range(counts[rank]):
                module.kept.fill_(-5.0 - rank)
                model(row(1, 2)).sum().backward()
        return module.seen

    for rank, seen in enumerate(run(program, len(counts)).returns):
        assert seen == [max(-5.0 - r for r, c in enumerate(counts) if i < c) for i in range(counts[rank])]


# Forwards.


@each_counts
def test_evaluation_inside(counts):
    def program(rank, evaluates):
        torch.manual_seed(0)
        module = networks.with_buffers()
        model = DistributedDataParallel(module, bucket_cap_mb=TINY)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = batches(*counts)[rank]
        with model.join():
            for batch in data:
                optimizer.zero_grad()
                output = model(batch)
                if evaluates:
                    evaluate(model, batch)  # between a forward and its backward
                output.pow(2).mean().backward()
                optimizer.step()
                if evaluates:
                    evaluate(model, batch)
        return [parameter.detach() for parameter in module.parameters()]

    def evaluate(model, batch):
        model.eval()
        with torch.no_grad():
            model(batch)
        model.train()

    size = len(counts)
    torch.testing.assert_close(run(program, size, True).returns, run(program, size, False).returns, rtol=0, atol=0)


def products(module, rank, iteration):
    return (module(row(rank, iteration)) * module(row(iteration, 1))).sum()


@each_counts
@pytest.mark.parametrize("by_all", [True, False], ids=["by-all", "by-present"])
def test_two_forwards_for_one_backward(counts, by_all):
    def program(rank):
        model = DistributedDataParallel(linear())
        with model.join(by_all):
            for iteration in range(counts[rank]):
                products(model, rank, iteration).backward()
                step(model)
        return model.module.weight.tolist()

    layer = linear()
    for iteration in range(max(counts)):
        present = [rank for rank, count in enumerate(counts) if iteration < count]
        for rank in present:
            (products(layer, rank, iteration) / (len(counts) if by_all else len(present))).backward()
        step(layer)
    _same(run(program, len(counts)).returns, [layer.weight.tolist()] * len(counts))


def step(module, rate=0.01):
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter -= rate * parameter.grad
                parameter.grad = None


def _same(actual, expected):
    torch.testing.assert_close(list(actual), list(expected), rtol=1e-12, atol=1e-12)


# Several models.


def criticize(generator, critic, number):
    return (critic(generator(row(number, 1)).detach()) - critic(row(number))).sum().square()


def deceive(generator, critic, number):
    """With the critic's parameters out of it."""
    critic.requires_grad_(False)
    loss = (critic(generator(row(1, number))) + 1).square().sum()
    critic.requires_grad_(True)
    return loss


@each_counts
def test_an_adversary(counts):
    """Two steps an iteration, each with the other model's parameters out of it."""

    def program(rank):
        generator, critic = (DistributedDataParallel(layer) for layer in (linear(), linear(1)))
        with Join([generator, critic]):
            for number in range(rank, rank + counts[rank]):
                criticize(generator, critic, number).backward()
                step(critic)
                deceive(generator, critic, number).backward()
                step(generator)
        return generator.module.weight.tolist(), critic.module.weight.tolist()

    generator, critic = linear(), linear(1)
    for iteration in range(max(counts)):
        present = [rank for rank, count in enumerate(counts) if iteration < count]
        for loss, trained in ((criticize, critic), (deceive, generator)):
            (sum(loss(generator, critic, rank + iteration) for rank in present) / len(counts)).backward()
            step(trained)
    expected = generator.weight.tolist(), critic.weight.tolist()
    _same(run(program, len(counts)).returns, [expected] * len(counts))


@each_counts
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["in-order", "other-order"])
def test_chained_models(counts, order):
    def program(rank):
        first, second = DistributedDataParallel(linear(2, 3)), DistributedDataParallel(linear(3))
        both = (first, second)
        with Join([both[index] for index in order]):
            for iteration in range(counts[rank]):
                second(first(row(rank, iteration)).tanh()).sum().backward()
                step(first)
                step(second)
        return first.module.weight.tolist(), second.module.weight.tolist()

    first, second = linear(2, 3), linear(3)
    for iteration in range(max(counts)):
        for rank, count in enumerate(counts):
            if iteration < count:
                (second(first(row(rank, iteration)).tanh()).sum() / len(counts)).backward()
        step(first)
        step(second)
    _same(run(program, len(counts)).returns, [(first.weight.tolist(), second.weight.tolist())] * len(counts))


def test_models_in_an_order_that_varies():
    def program(rank):
        models = [DistributedDataParallel(linear()) for _ in range(3)]
        with Join(models):
            for iteration in range(1 + 2 * rank):
                for index in range(3):
                    model = models[(index + iteration) % 3]
                    model(row(iteration, 1)).sum().backward()
                    step(model)
        return [model.module.weight.tolist() for model in models]

    one, other, third = run(program, 3).returns
    assert one == other == third


# Weighting by samples.


def weighted(counts, sizes, hook=None, accumulate=1, torchs=False):
    """Train with batches of `sizes[rank][iteration]` rows; return the weights, and those of one process."""

    def batch(rank, iteration):
        size = sizes[rank][iteration]
        return torch.arange(2.0 * size, dtype=torch.float64).reshape(size, 2) / 10 + rank - iteration

    def program(rank):
        model = DistributedDataParallel(linear())
        if hook is not None:
            model.register_comm_hook(None, hook)
        join = TorchJoin([model], weight_by_samples=True) if torchs else model.join(weight_by_samples=True)
        with join:
            for iteration in range(counts[rank]):
                if (iteration + 1) % accumulate:
                    with model.no_sync():
                        model(batch(rank, iteration)).square().mean().backward()
                else:
                    model(batch(rank, iteration)).square().mean().backward()
                    step(model)
        return model.module.weight.tolist()

    layer = linear()
    for start in range(0, max(counts), accumulate):
        window = [(r, i) for r, c in enumerate(counts) for i in range(start, start + accumulate) if i < c]
        total = sum(sizes[rank][iteration] for rank, iteration in window)
        for rank, iteration in window:
            own = sum(sizes[r][i] for r, i in window if r == rank)
            if own:
                (layer(batch(rank, iteration)).square().mean() * own / total).backward()
        step(layer)
    return run(program, len(counts)).returns, [layer.weight.tolist()] * len(counts)


@rows("torchs", [False, True], ids=["own", "torchs"])
@rows("hook", [None, default_hooks.allreduce_hook], ids=["plain", "hook"])
@rows("counts", [(2, 2), (3, 1), (0, 2, 3), (2, 3, 1, 0)], ids=str)
def test_weighting_by_samples(counts, hook, torchs):
    _same(*weighted(counts, [(1, 4, 2), (3, 1, 5), (2, 2, 2), (7, 1, 1)], hook, torchs=torchs))


def test_samples_of_an_accumulation():
    _same(*weighted((2, 4), [(1, 3, 0, 0), (4, 2, 1, 1)], accumulate=2))


def test_weighting_is_the_gradient_of_all_samples():
    def program(rank):
        model = DistributedDataParallel(linear())
        with model.join(weight_by_samples=True):
            model(torch.ones(1 + rank, 2, dtype=torch.float64) * (rank + 1)).square().mean().backward()
        return model.module.weight.grad.tolist()

    layer = linear()
    data = torch.cat([torch.ones(1 + rank, 2, dtype=torch.float64) * (rank + 1) for rank in range(3)])
    layer(data).square().mean().backward()
    _same(run(program, 3).returns, [layer.weight.grad.tolist()] * 3)


@rows("hook", [None, default_hooks.allreduce_hook], ids=["plain", "hook"])
@rows("options", [{}, {"gradient_as_bucket_view": True}, {"gradient_as_bucket_view": False}], ids=str)
def test_an_empty_batch_does_not_poison_the_others(options, hook):
    def program(rank):
        model = DistributedDataParallel(linear(), **options)
        if hook is not None:
            model.register_comm_hook(None, hook)
        with model.join(weight_by_samples=True):
            for _ in range(2):
                model.zero_grad()
                loss = model(torch.ones(2 * rank, 2, dtype=torch.float64)).mean()
                assert loss.isnan() == (rank == 0)
                loss.backward()
        return model.module.weight.grad.tolist()

    assert list(run(program, 2).returns) == [[[1.0, 1.0]]] * 2


# torch's Join. With its sharded optimizer: tests/ddp_equivalence/test_optimizers.py.


@each_counts
def test_torchs_join_with_evaluation_and_accumulation(counts):
    def program(rank):
        torch.manual_seed(0)
        model = DistributedDataParallel(networks.with_buffers())
        data = batches(*counts)[rank]
        for _ in range(2):
            with TorchJoin([model]):
                for batch in data:
                    with model.no_sync():
                        mean_square(model, batch).backward()
                    output = model(batch)
                    with torch.no_grad():
                        model(batch)
                    output.pow(2).mean().backward()
                    step(model)
        return [parameter.tolist() for parameter in model.parameters()]

    returns = run(program, len(counts)).returns
    assert list(returns) == [returns[0]] * len(counts)


# Collectives of the program's own.


@each_counts
def test_a_layer_that_communicates_in_forward_and_backward(counts):
    training = Training(
        networks.Normalizing, batches(*counts), mean_square, is_joined=True, divide_by_initial_world_size=False
    )
    plain = seeded(lambda: networks.Normalizing(total=lambda sums: sums))
    wanted = oracle.train_on_all_rows(training, plain).parameters
    for after in run(train, len(counts), training, {"bucket_cap_mb": TINY}).returns:
        torch.testing.assert_close(after.parameters, wanted, rtol=1e-12, atol=1e-12)


def in_loop(counts, call):
    """What `call(rank, iteration, group)` returns on each rank with input, after each forward; for several groups."""

    def program(rank, kind):
        others = dist.new_group(list(range(len(counts))))
        group = {"none": None, "default": dist.group.WORLD, "new": others}[kind]
        model = DistributedDataParallel(linear())
        found = []
        with model.join():
            for iteration in range(counts[rank]):
                model(row(1, 2)).sum().backward()
                found.append(call(rank, iteration, group))
        return found

    return [run(program, len(counts), kind).returns for kind in ("none", "default", "new")]


@each_counts
@pytest.mark.parametrize("dtype", sweep([torch.float64, torch.int32], lambda dtype: dtype.is_floating_point), ids=str)
def test_collectives_in_the_loop(counts, dtype):
    size, root = len(counts), counts.index(max(counts))

    def call(rank, iteration, group):
        return made(COLLECTIVES, values(rank, iteration, size, dtype), root, group)

    for returns in in_loop(counts, call):
        for rank, own in enumerate(returns):
            assert len(own) == counts[rank]
            for iteration, found in enumerate(own):
                by_rank = [values(r, iteration, size, dtype) if iteration < c else None for r, c in enumerate(counts)]
                assert_made(found, Inputs(by_rank, rank, root))


def test_an_average_is_over_all_ranks():
    def call(rank, iteration, group):
        loss = torch.tensor(6.0 * (rank + 1))
        dist.all_reduce(loss, dist.ReduceOp.AVG, group=group)
        return loss.item()

    assert in_loop((1, 2), call) == [([9], [9, 6])] * 3


@each_counts
def test_several_tensors_in_one_call(counts):
    def call(rank, iteration, group):
        many = [torch.full((1 + index % 5, 2), float(rank + index)) for index in range(80)]
        with dist.distributed_c10d._coalescing_manager(group=group):
            for tensor in many:
                dist.all_reduce(tensor, group=group)
        return [tensor.sum().item() for tensor in many]

    def expected(iteration):
        present = [rank for rank, count in enumerate(counts) if iteration < count]
        return [2 * (1 + index % 5) * sum(rank + index for rank in present) for index in range(80)]

    wanted = tuple([expected(iteration) for iteration in range(count)] for count in counts)
    assert in_loop(counts, call) == [wanted] * 3


def test_collectives_without_a_wait_of_their_own():
    def program(rank):
        model = DistributedDataParallel(linear())
        found = []
        with model.join():
            for _ in range(1 + rank):
                loss = model(row(1, 2)).sum()
                total = loss.detach().clone()
                work = dist.all_reduce(total, async_op=True)
                loss.backward()
                work.wait()
                found.append(total.item())
        return found

    assert list(run(program, 2).returns) == [[6], [6, 3]]


# Communication hooks with a state.


@pytest.mark.parametrize("counts", [(2, 5), (5, 2), (0, 4)], ids=str)
def test_the_state_of_a_hook_stays_in_step(counts):
    def program(rank):
        torch.manual_seed(0)
        model = DistributedDataParallel(copy.deepcopy(networks.multilayer()).float())
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=3)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = []
        for _ in range(2):
            with model.join():
                steps(model, optimizer, training, [batch.float() for batch in training.batches[rank]])
            seen.append(state.iter)
        steps(model, optimizer, training, [batch.float() for batch in equal_batches(len(counts), 2)[rank]])
        return [p.tolist() for p in model.parameters()], [*seen, state.iter]

    training = Training(networks.multilayer, batches(*counts), mean_square)
    returns = run(program, len(counts)).returns
    assert list(returns) == [returns[0]] * len(counts)
    longest = max(counts)
    assert returns[0][1] == [longest, 2 * longest, 2 * longest + 2]
