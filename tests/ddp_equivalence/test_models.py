"""Models that are unusual: mixed dtypes, sparse gradients, checkpoints, hooks, and autograd inside autograd."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.ddp_equivalence.engine import DistributedDataParallel, check, expectation, simulated
from tests.ddp_equivalence.test_plain import OPTIONS, TINY, WORLDS
from tests.kit import networks, oracle
from tests.kit.results import returned
from tests.kit.training import Training, assert_same, batches, equal_batches, mean_square, seeded, trained

pytestmark = [
    pytest.mark.filterwarnings("ignore:find_unused_parameters=True was specified"),
    pytest.mark.filterwarnings("ignore:You passed find_unused_parameters=true to DistributedDataParallel"),
    pytest.mark.filterwarnings("ignore:Grad strides do not match bucket view strides"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing when gradients are computed"),
]
BOTH = pytest.mark.parametrize("counts", [(3, 3, 3), (1, 3, 0)], ids=["equal", "uneven"])


def trains(build, counts, loss=mean_square, **options):
    return Training(build, batches(*counts), loss, is_joined=len(set(counts)) > 1, **options)


@BOTH
@pytest.mark.parametrize(
    "name", sorted({"defaults", "tiny-buckets", "gradient-views", "unused", "batched-copy"} & OPTIONS.keys())
)
def test_mixed_dtypes(name, counts):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide, self.narrow = nn.Linear(4, 3).double(), nn.Linear(3, 2)
            self.scale = nn.Parameter(torch.ones(2, dtype=torch.complex64))

        def forward(self, batch):
            hidden = self.narrow(self.wide(batch).tanh().float())
            return (hidden * self.scale).abs().double()

    check(trains(Mixed, counts), OPTIONS[name], tolerance=1e-5)


@BOTH
@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": TINY}, {"find_unused_parameters": True}], ids=str)
def test_sparse_gradients(counts, options, engine_name):
    if len(set(counts)) == 1 or engine_name == "ddp":  # a rank that joined torch's raises: it cannot shadow the bucket
        check(trains(lambda: networks.Sparse().double(), counts), options)


@pytest.mark.parametrize(
    ("name", "counts"),
    [*((name, (3, 3, 3)) for name in OPTIONS), *((name, (1, 3, 0)) for name in OPTIONS if "static" not in name)],
)
def test_checkpointing_without_reentry(name, counts):
    check(trains(lambda: networks.Checkpointed(is_reentrant=False, times=2).double(), counts), OPTIONS[name])


@pytest.mark.parametrize("name", ["defaults", "static", "static-gradient-views"])
def test_checkpointing_with_reentry(name):
    check(trains(lambda: networks.Checkpointed(is_reentrant=True).double(), (3, 3, 3)), OPTIONS[name])


@pytest.mark.parametrize("name", ["static", "static-gradient-views"])
def test_checkpointing_the_same_layer_twice_with_reentry(name):
    check(trains(lambda: networks.Checkpointed(is_reentrant=True, times=2).double(), (3, 3)), OPTIONS[name])


@BOTH
def test_module_hooks(counts):
    def build():
        module = networks.multilayer()
        module[0].register_forward_hook(lambda module, inputs, output: output * 2)
        module[2].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
        module[4].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 3,))
        module[0].weight.register_hook(lambda gradient: gradient / 2)
        return module

    check(trains(build, counts), {"bucket_cap_mb": TINY})


def test_hooks_of_the_wrapper():
    def program(rank):
        calls = []
        model = DistributedDataParallel(networks.multilayer())
        model.register_forward_pre_hook(lambda *_: calls.append("forward pre"))
        model.register_forward_hook(lambda *_: calls.append("forward"))
        model.register_full_backward_hook(lambda *_: calls.append("backward"))
        mean_square(model, equal_batches(2)[rank][0]).backward()
        return calls

    assert returned(program, 2) == (["forward pre", "forward", "backward"],) * 2


@BOTH
@pytest.mark.parametrize("name", ["defaults", "tiny-buckets", "gradient-views", "unused", "static"])
def test_a_gradient_inside_the_forward(name, counts):
    class Force(nn.Module):
        """Like a model of molecules: its output is a gradient itself."""

        def __init__(self):
            super().__init__()
            self.energy = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1, bias=False))

        def forward(self, batch):
            with torch.enable_grad():
                positions = batch.detach().requires_grad_()
                energy = self.energy(positions).sum()
                (force,) = torch.autograd.grad(energy, positions, create_graph=True)
            return force + energy

    counts = (3, 2, 1) if name == "static" and 0 in counts else counts
    check(trains(lambda: Force().double(), counts), OPTIONS[name])


@BOTH
def test_a_double_backward(counts):
    def gradient_penalty(model, batch):
        points = batch.clone().requires_grad_()
        output = model(points).pow(2).mean()
        (gradient,) = torch.autograd.grad(output, points, create_graph=True)
        return output + gradient.pow(2).sum()

    check(trains(networks.multilayer, counts, gradient_penalty))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("world_size", WORLDS)
def test_a_forward_that_communicates(world_size, name):
    training = Training(networks.Normalizing, equal_batches(world_size), mean_square)
    plain = seeded(lambda: networks.Normalizing(total=lambda sums: sums))
    expected = oracle.train_on_all_rows(training, plain)
    for actual in simulated(training, OPTIONS[name]).returns:
        assert_same(actual, expected)


@pytest.mark.torch_only("ours has no delayed parameters")
def test_delayed_parameters():
    def program(rank):
        module = seeded(networks.multilayer, rank)
        delayed = [(name, p) for name, p in module.named_parameters() if name.startswith("4.")]
        # The all_reduce of the delayed ones starts when this one's gradient is there, so it must be the last of all.
        model = DistributedDataParallel(
            module.float(),
            delay_all_reduce_named_params=delayed,
            param_to_hook_all_reduce=module[0].weight,
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in training.batches[rank]:
            optimizer.zero_grad()
            mean_square(model, batch.float()).backward()
            dist.barrier()  # torch leaves it to the user to wait
            optimizer.step()
        return trained(module.double())

    training = Training(networks.multilayer, equal_batches(3), mean_square)
    for actual, expected in zip(returned(program, 3), expectation(training), strict=True):
        torch.testing.assert_close(actual.parameters, expected.parameters, rtol=1e-5, atol=1e-6)


def test_inference_mode_and_evaluation():
    def program(rank):
        torch.manual_seed(rank)
        model = DistributedDataParallel(networks.with_buffers())
        model.eval()
        with torch.no_grad():
            without_gradients = model(batch)
        with torch.inference_mode():
            inferred = model(batch)
        return without_gradients.clone(), inferred.clone()

    batch = equal_batches(1)[0][0]
    expected = seeded(networks.with_buffers).eval()(batch).detach()
    for outputs in returned(program, 3):
        for output in outputs:
            assert torch.equal(output, expected)
