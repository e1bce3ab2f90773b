"""Joins around loops that do more, or less, than a forward and a backward for each batch."""

from contextlib import nullcontext, suppress

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, finds, odd_one_out, repairs, scenario


@scenario(
    expected=CLEAN,
    reports=["pytorch/pytorch#42577", "pytorch/pytorch#44427", "pytorch/pytorch#61020"],
    tags=["ddp", "join"],
)
def join_baseline(rank: int) -> None:
    """Control: a rank without a single batch and others of several lengths train under join, and nothing goes wrong.

    A rank that has run out makes the calls of the others: buckets, buffers, and the forming of new buckets, which
    it may never have seen. Here with batch norm, and with accumulation under no_sync.
    """
    # Rank r has 2r batches: rank 0 has none.
    torch.manual_seed(rank)
    module = torch.nn.Sequential(torch.nn.Linear(4, 3, bias=False), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    model = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for step in range(2 * rank):
            accumulates = step % 2 == 0
            with model.no_sync() if accumulates else nullcontext():
                model(torch.randn(8, 4)).square().mean().backward()
            if not accumulates:
                optimizer.step()
                optimizer.zero_grad()


def batch_of(rank: int, step: int) -> torch.Tensor:
    """The rank's next batch."""
    if rank == 1 and step == 2:
        raise ValueError("record 17 cannot be decoded")  # found here
    return torch.randn(8, 4)


@scenario(expected=finds(Code.RANK_ERROR, ranks=1), tags=["ddp", "join", "control-flow"])
def join_left_by_exception(rank: int) -> None:
    """One rank meets a bad record inside the join and leaves it by an exception.

    Torch's join then returns at once, without making up for anything, and the others wait for a rank that has left:
    on real gloo their connection is closed, far from the cause. Under engine "ddp" every rank gets an error that
    names that rank.
    """
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    with model.join():
        for step in range(4):
            model(batch_of(rank, step)).square().mean().backward()


@repairs(join_left_by_exception)
def join_left_by_exception_repaired(rank: int) -> None:
    """The bad record is skipped, before the forward: the rank has one batch less, which is what join is for."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    with model.join():
        for step in range(4):
            try:
                batch = batch_of(rank, step)
            except ValueError:
                continue
            model(batch).square().mean().backward()


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=1),
    reports=["pytorch/pytorch#47250", "pytorch/pytorch#56755"],
    tags=["ddp", "join"],
)
def join_throw_on_early_termination(rank: int) -> None:
    """Control: with throw_on_early_termination all ranks raise together as soon as the first one runs out of input.

    That is what the option is for: it ends the loop everywhere by a RuntimeError, whose text differs between the
    rank that ran out and the rest. Real gloo does the same. Caught on every rank, it is the end of the epoch.
    """
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    with model.join(throw_on_early_termination=True):  # found here
        for _ in range(2 if rank == 1 else 4):
            model(torch.randn(8, 4)).square().mean().backward()


@repairs(join_throw_on_early_termination)
def join_throw_on_early_termination_repaired(rank: int) -> torch.Tensor:
    """The error is caught, around the join."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    try:
        with model.join(throw_on_early_termination=True):
            for _ in range(2 if rank == 1 else 4):
                model(torch.randn(8, 4)).square().mean().backward()
    except RuntimeError:
        pass
    return model.module.weight.detach()  # type: ignore[no-any-return]


class Centred(torch.nn.Module):
    """A linear layer on what is left of a batch without the mean over all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The prediction."""
        mean = batch.mean(dim=0)
        dist.all_reduce(mean)  # found here
        return self.linear(batch - mean / dist.get_world_size())  # type: ignore[no-any-return]


def train(rank: int, *, ends_together: bool) -> None:
    """On 4 batches, and on 2 on rank 1."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(Centred())
    with model.join(throw_on_early_termination=ends_together):  # found here
        for _ in range(2 if rank == 1 else 4):
            model(torch.randn(8, 4)).square().mean().backward()


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    under_ddp=CLEAN,
    reports=["pytorch/pytorch#57448", "pytorch/pytorch#38174", "Lightning-AI/pytorch-lightning#3325"],
    tags=["ddp", "join"],
)
def join_with_collective_in_forward(rank: int) -> None:
    """The model's forward makes a collective of its own, which a rank that has joined does not make for the others.

    Torch's join makes up for the wrapper's calls only, so the model's all_reduce meets a call of join, of another
    size: on real gloo one process aborts. Engine "ddp" announces each call to the ranks that have joined, and they
    make it as well.
    """
    train(rank, ends_together=False)


@repairs(join_with_collective_in_forward)
def join_with_collective_in_forward_repaired(rank: int) -> None:
    """All ranks end the loop when the first one runs out."""
    with suppress(RuntimeError):  # a rank ran out of input: the epoch is over, everywhere
        train(rank, ends_together=True)


@scenario(expected=finds(Code.MISMATCH_ORIGIN, ranks=odd_one_out(1)), under_ddp=CLEAN, tags=["ddp", "join", "loop"])
def join_with_collective_in_the_loop(rank: int) -> list[float]:
    """Inside the join the loop reduces the loss for a log, and a rank that has joined does not make that call.

    The loss has the very size of join's own "who is still here", so torch's join lets them meet and counts losses
    as ranks; real gloo notices it later, if ever, by another size. Engine "ddp" lets the joined ranks make the
    call.
    """
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    log = []
    with model.join():  # found here
        for _ in range(2 if rank == 1 else 4):
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            total = loss.detach().reshape(1)
            dist.all_reduce(total)  # found here
            log.append(total.item())
    return log


@repairs(join_with_collective_in_the_loop)
def join_with_collective_in_the_loop_repaired(rank: int) -> float:
    """The losses are added up on each rank, and reduced once after the join."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    total = torch.zeros(2)
    with model.join():
        for _ in range(2 if rank == 1 else 4):
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            total += torch.tensor([loss.item(), 1.0])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


@scenario(expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)), under_ddp=CLEAN, tags=["ddp", "join"])
def join_with_other_forward_backward_ratio(rank: int) -> None:
    """Inside the join the loop also evaluates through the wrapper, and a rank that has joined expects a backward to follow.

    Torch's join makes up for one forward and one backward in each round, and takes an evaluation under no_grad for
    such a forward: on real gloo one process aborts. Engine "ddp" follows whatever the others do.
    """
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    with model.join():  # found here
        for _ in range(2 if rank == 1 else 4):
            batch = torch.randn(8, 4)
            model(batch).square().mean().backward()  # found here
            with torch.no_grad():
                model(batch)


@repairs(join_with_other_forward_backward_ratio)
def join_with_other_forward_backward_ratio_repaired(rank: int) -> None:
    """Look at the predictions of the inner module, which does not communicate."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    with model.join():
        for _ in range(2 if rank == 1 else 4):
            batch = torch.randn(8, 4)
            model(batch).square().mean().backward()
            with torch.no_grad():
                model.module(batch)
