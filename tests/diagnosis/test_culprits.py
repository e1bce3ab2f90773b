"""Programs of four ranks of which one goes wrong: the whole diagnosis, from torch's DDP to the last line.

In each, the odd rank is the culprit and its line the first; the repaired twin passes without a finding.
"""

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ddpsim import Verdict, simulate
from tests.process_group.training import inputs, sgd, train, wrapped

ODD = 2


def ends_early(rank, odd, *, normalised):
    model = wrapped(normalised=normalised)
    train(model, sgd(model), rank, 2 if rank == odd else 4)
    dist.barrier()  # odd: the line after the loop


def evaluates(rank, odd, *, then):
    model = wrapped(normalised=True)
    train(model, sgd(model), rank, 2)
    if rank == odd:
        model.eval()
        with torch.no_grad():
            model(inputs(rank))  # odd: a forward of its own
    if then:
        dist.barrier()


class Centred(torch.nn.Module):
    """A layer that communicates in forward, and can be left out."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.branch = torch.nn.Linear(4, 1)

    def forward(self, batch, centre, branch):
        if centre:
            mean = batch.mean(0).detach()
            dist.all_reduce(mean)
            batch = batch - mean
        return self.layer(batch) + self.branch(batch) if branch else self.layer(batch)


def skips_layer(rank, odd):
    model = DistributedDataParallel(Centred())
    model(inputs(rank), rank != odd, True).sum().backward()  # odd: no call in forward


def skips_branch(rank, odd):
    model = DistributedDataParallel(Centred())
    for _ in range(2):
        model(inputs(rank), False, rank != odd).sum().backward()  # odd: a forward after an unfinished reduction


def reuses_layer(rank, odd):
    class Reuse(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(4, 4)
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, batch):
            batch = self.first(batch)
            for _ in range(2):
                batch = checkpoint(self.layer, batch, use_reentrant=odd is not None)
            return batch

    model = DistributedDataParallel(Reuse())
    model(inputs(rank)).sum().backward()  # odd: every rank is


def joins(rank, odd):
    model = wrapped()
    optimizer = sgd(model)
    with model.join():
        for _ in range(2 if rank == ODD else 4):
            train(model, optimizer, rank, 1)
            if odd is not None:
                dist.all_reduce(torch.ones(1))
    # the rank without input makes the call that meets theirs at the end of the context


def wraps_another(rank, odd):
    torch.manual_seed(0)
    layers = 3 if rank == odd else 2
    DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(layers)]))  # odd: more layers


def wrappers_in_another_order(rank, odd):
    first, second = (DistributedDataParallel(torch.nn.Linear(4, 1)) for _ in range(2))
    losses = [first(inputs(rank)).sum(), second(inputs(rank)).sum()]
    for loss in losses[::-1] if rank == odd else losses:
        loss.backward()  # odd: the other one first


def passes_another_shape(rank, odd):
    dist.all_reduce(torch.ones(8 if rank == odd else 4))  # odd: 8 elements


def passes_another_root(rank, odd):
    dist.broadcast(torch.ones(4), 1 if rank == odd else 0)  # odd: root 1


def saves_alone(rank, odd):
    if rank == odd:
        dist.barrier()  # odd: it meets the others' only one
    if odd is not None:
        dist.barrier()


def takes_a_group_rank(rank, odd):
    group = dist.new_group([1, 2])
    if rank in (1, 2):
        dist.broadcast(torch.ones(1), src=0 if rank == odd else 1, group=group)  # odd: rank 0 of the group


@dataclass(frozen=True)
class Case:
    """A program, what its finding is and says, and whose fault it is."""

    program: object
    code: str
    words: tuple[str, ...]
    culprits: tuple[int, ...] = (ODD,)
    options: tuple[tuple[str, bool], ...] = ()
    line: str = "# odd"


CASES = {
    "early exit": Case(
        ends_early,
        "mismatch.operation",
        ("rank 2 left the training loop before the others", "all_reduce(MIN)"),
        options=(("normalised", False),),
    ),
    "early exit, with buffers": Case(
        ends_early,
        "mismatch.operation",
        ("rank 2 left the training loop before the others", "model.join()"),
        options=(("normalised", True),),
    ),
    "evaluation on one rank": Case(
        evaluates, "mismatch.operation", ("rank 2 made one that", "evaluate on model.module"), options=(("then", True),)
    ),
    "evaluation at the end": Case(
        evaluates,
        "deadlock.missing_rank",
        ("rank 2 made one that", "evaluate on model.module"),
        options=(("then", False),),
    ),
    "a layer skipped": Case(skips_layer, "mismatch.shape", ("rank 2 left one out", "through the same layers")),
    "an unused branch": Case(
        skips_branch, "rank_error", ("branch.weight, branch.bias got no gradient", "find_unused_parameters=True")
    ),
    "a checkpoint": Case(reuses_layer, "rank_error", ("twice", "use_reentrant=False"), culprits=(0, 1, 2, 3)),
    "a collective inside join": Case(
        joins, "mismatch.origin", ("rank 2 ran out of input", "is not known to it", "Joinable"), line="with model.join"
    ),
    "another model": Case(wraps_another, "rank_error", ("what rank 2 wrapped differs", "the same model")),
    "other order of wrappers": Case(
        wrappers_in_another_order,
        "mismatch.origin",
        ("rank 2 used the wrappers in another order", "in one order on every rank"),
    ),
    "another shape": Case(passes_another_shape, "mismatch.shape", ("rank 2 passed another shape", "the same shape")),
    "another root": Case(passes_another_root, "mismatch.root", ("rank 2 passed another root", "group_src")),
    "one barrier more": Case(
        saves_alone, "deadlock.missing_rank", ("different lines met in barrier #0, rank 2", "or on none")
    ),
    "a group rank as root": Case(takes_a_group_rank, "rank_error", ("global ranks", "dist.get_global_rank")),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_odd_one_out_is_named_with_its_line_and_the_advice_fits(case):
    result = simulate(lambda rank: case.program(rank, ODD, **dict(case.options)), 4)
    finding = result.findings[0]
    assert (finding.code, finding.ranks) == (case.code, case.culprits)
    *_, cause, remedy, replay = str(finding).splitlines()
    assert cause.startswith("  cause   ")
    assert remedy.startswith("  try     ")
    assert replay.startswith("  replay  ")
    assert all(words in cause + remedy for words in case.words), cause + remedy
    assert case.line in source_of(finding.sites[0])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_repaired_twin_passes(case):
    result = simulate(lambda rank: case.program(rank, None, **dict(case.options)), 4)
    assert result.verdict is Verdict.PASS
    assert result.findings == ()


def source_of(site):
    with open(site.path, encoding="utf-8") as file:
        return file.read().splitlines()[site.line - 1]
