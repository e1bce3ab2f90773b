"""What torch's test_c10d_gloo.py and test_ddp_hooks.py ask of DistributedDataParallel, where nothing else here did."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from tests.kit.results import returned


def run(program, world_size=2, *args):
    return returned(program, world_size, args=args)


class Tasks(nn.Module):
    """Rank 0 uses one parameter, the others another, and none the third."""

    def __init__(self):
        super().__init__()
        self.of_first, self.of_others, self.of_nobody = (nn.Parameter(torch.ones(2)) for _ in range(3))

    def forward(self, inputs, rank):
        return inputs * (self.of_first if rank == 0 else self.of_others)


@pytest.mark.parametrize(
    "options",
    [
        {"find_unused_parameters": True},
        {"find_unused_parameters": True, "gradient_as_bucket_view": True},
        {"static_graph": True},
    ],
    ids=["plain", "view", "static"],
)
def test_parameters_used_by_some_ranks_and_by_none(options):
    def program(rank):
        model = DistributedDataParallel(Tasks(), **options)
        model(torch.full((2,), 6.0), rank).sum().backward()
        inner = model.module
        return [None if each.grad is None else each.grad.tolist() for each in inner.parameters()]

    # The mean over three ranks, of which one has 6 for the first parameter and two have it for the second.
    assert run(program, 3) == ([[2.0, 2.0], [4.0, 4.0], None],) * 3


@pytest.mark.parametrize("finds_unused", [False, True])
def test_outputs_may_be_ignored(finds_unused):
    def program(rank):
        torch.manual_seed(0)
        inner = nn.Linear(2, 1)
        inner.idle = nn.Linear(2, 1) if finds_unused else None
        model = DistributedDataParallel(inner, find_unused_parameters=finds_unused)
        gradients = []
        for is_used in (False, False, True, False, True):
            output = model(torch.full((1, 2), rank + 1.0))
            if is_used:
                model.zero_grad()
                output.sum().backward()
                gradients.append(inner.weight.grad.tolist())
        return gradients

    assert run(program) == ([[[1.5, 1.5]]] * 2,) * 2


@pytest.mark.parametrize("is_view", [False, True])
def test_sparse_gradients(is_view):
    def embedding():
        torch.manual_seed(0)
        return nn.EmbeddingBag(10, 3, mode="sum", sparse=True)

    def program(rank):
        model = DistributedDataParallel(embedding(), gradient_as_bucket_view=is_view)
        model(rows[rank : rank + 1]).sum().backward()
        gradient = model.module.weight.grad
        return gradient.is_sparse, gradient.coalesce().to_dense()

    rows = torch.tensor([[1, 2, 2], [2, 3, 9]])
    whole = embedding()
    (whole(rows).sum() / 2).backward()
    for is_sparse, gradient in run(program):
        assert is_sparse
        assert_close(gradient, whole.weight.grad.to_dense())


def test_training_goes_on_from_a_checkpoint(tmp_path):
    def steps(rank, model, optimizer, numbers):
        for number in numbers:
            optimizer.zero_grad()
            model(torch.full((3, 4), rank + number + 1.0)).square().mean().backward()
            optimizer.step()

    def program(rank):
        torch.manual_seed(rank)  # the wrapper sends the parameters of rank 0
        models = [DistributedDataParallel(nn.Linear(4, 2)) for _ in range(2)]
        models[1].load_state_dict(models[0].state_dict())
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in models]
        steps(rank, models[0], optimizers[0], range(6))
        steps(rank, models[1], optimizers[1], range(3))
        if rank == 0:
            torch.save(models[1].state_dict(), tmp_path / "checkpoint")
        dist.barrier()
        state = torch.load(tmp_path / "checkpoint")
        with torch.no_grad():
            for each in models[1].parameters():
                each.zero_()
        models[1].load_state_dict(state)
        steps(rank, models[1], optimizers[1], range(3, 6))
        bare = nn.Linear(4, 2)
        nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
        bare.load_state_dict(state)
        return [models[0].module.weight, models[1].module.weight], bare.weight, state["weight"]

    for (never_left, resumed), bare, kept in run(program):
        assert torch.equal(never_left, resumed)
        assert torch.equal(bare, kept)


def test_a_hook_may_set_its_future_itself():
    def hook(state, bucket):
        future = torch.futures.Future()
        future.set_result(torch.full_like(bucket.buffer(), 7.0))
        return future

    def program(rank):
        model = DistributedDataParallel(nn.Linear(2, 2))
        model.register_comm_hook(None, hook)
        model(torch.ones(1, 2)).sum().backward()
        return {each.grad.unique().item() for each in model.parameters()}

    assert run(program) == ({7.0},) * 2


def test_hooks_that_torch_refuses():
    def program(rank):
        model = DistributedDataParallel(nn.Linear(2, 2))
        with pytest.raises(TypeError, match="must be callable"):
            model.register_comm_hook(None, 1)
        with pytest.raises(ValueError, match=r"bucket annotation should be dist.GradBucket"):
            model.register_comm_hook(None, wrongly_annotated)
        model.register_comm_hook(None, lambda state, bucket: bucket.buffer())
        with pytest.raises(
            RuntimeError, match="register_comm_hook or register_builtin_comm_hook can only be called once"
        ):
            model.register_comm_hook(None, lambda state, bucket: bucket.buffer())
        with pytest.raises(RuntimeError, match=r"callback must return a torch.futures.Future"):
            model(torch.ones(1, 2)).sum().backward()

    def wrongly_annotated(state, bucket: int) -> torch.futures.Future[torch.Tensor]:
        raise AssertionError

    run(program)


def test_the_last_bucket_says_so():
    def hook(flags, bucket):
        flags.append((bucket.index(), bucket.is_last()))
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def program(rank):
        flags = []
        model = nn.Sequential(*[nn.Linear(200, 200, bias=False) for _ in range(5)])
        model = DistributedDataParallel(model, bucket_cap_mb=0.1)
        model.register_comm_hook(flags, hook)
        for _ in range(2):
            model(torch.ones(1, 200)).sum().backward()
        return flags

    # Of 160 kB each; the first bucket may have 1 MB until the second step, for which they are planned anew.
    rebuilt = [(0, False), (1, False), (2, False), (3, False), (4, True)]
    assert run(program) == ([(0, True), *rebuilt],) * 2
