"""The examples do what they say; that of the README's first screen has its tests in test_readme.py."""

from __future__ import annotations

import io
import re
import runpy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from simulator import simulate
from simulator.calls import Phase
from simulator.events import EventKind

PATH = Path(__file__).resolve().parents[1] / "examples" / "weighted_loss.py"
EXAMPLE = runpy.run_path(str(PATH))
FEATURES = EXAMPLE["FEATURES"]

Batches = tuple[tuple[Tensor, Tensor], ...]


def data(*sizes: tuple[int, ...]) -> tuple[Batches, ...]:
    """Batches of these sizes, for each rank; a sample in four is positive, and the first batch of a rank has none."""
    generator = torch.Generator().manual_seed(len(sizes))
    return tuple(
        tuple(
            (
                torch.randn(size, FEATURES, generator=generator, dtype=torch.float64),
                torch.tensor([number > 0 and sample % 4 == rank % 4 for sample in range(size)]).double(),
            )
            for number, size in enumerate(own)
        )
        for rank, own in enumerate(sizes)
    )


def train(rank: int, batches: tuple[Batches, ...], saves_after: int | None = None) -> dict[str, Tensor]:
    """The example in double precision, perhaps in two parts with a checkpoint in between."""
    torch.manual_seed(rank)
    torch.set_default_dtype(torch.float64)
    own = batches[rank]
    if saves_after is None:
        return EXAMPLE["train"](own).state_dict()
    file = io.BytesIO()
    torch.save(EXAMPLE["train"](own[:saves_after]).state_dict(), file)
    file.seek(0)
    return EXAMPLE["train"](own[saves_after:], torch.load(file)).state_dict()


def expected(batches: tuple[Batches, ...]) -> dict[str, Tensor]:
    """The same in one process, on the samples of all ranks together, sample by sample."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        linear = nn.Linear(FEATURES, 1, dtype=torch.float64)
    counts = {"positives": 0, "negatives": 0}
    totals = {"all_positives": 0, "all_negatives": 0}
    for step in range(max(map(len, batches))):
        samples = [
            (row, bool(label)) for own in batches if step < len(own) for row, label in zip(*own[step], strict=True)
        ]
        counts["positives"] = sum(label for _, label in samples)
        counts["negatives"] = len(samples) - counts["positives"]
        for name, count in counts.items():
            totals[f"all_{name}"] += count
        weight = totals["all_negatives"] / max(totals["all_positives"], 1)
        loss = torch.zeros((), dtype=torch.float64)
        for row, is_positive in samples:
            chance = linear(row).sigmoid().squeeze()
            loss = loss - (weight * chance.log() if is_positive else (1 - chance).log())
        linear.zero_grad()
        (loss / len(samples)).backward()
        with torch.no_grad():
            for parameter in linear.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)
    return {
        **{f"linear.{name}": parameter.detach() for name, parameter in linear.named_parameters()},
        **{name: torch.tensor(count) for name, count in (counts | totals).items()},
    }


SIZES = {
    "one-rank": ((4, 5, 6),),
    "even": ((5, 5, 5), (5, 5, 5)),
    "uneven-batches": ((2, 7, 1), (9, 3, 6), (4, 4, 13)),
    "uneven-inputs": ((5, 6), (3, 4, 5, 6), (8,)),
    "no-input": ((), (3, 9, 2), (), (1, 1)),
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_weighted_loss(sizes):
    batches = data(*sizes)
    result = simulate(train, len(sizes), args=(batches,))
    result.raise_for_verdict()
    wanted = expected(batches)
    assert wanted["all_positives"] > 0
    assert wanted["all_positives"] + wanted["all_negatives"] == sum(map(sum, sizes))
    for state in result.returns:
        torch.testing.assert_close(dict(state), wanted, rtol=1e-12, atol=1e-12, check_dtype=True)


@pytest.mark.parametrize("saves_after", [1, 2])
def test_counts_are_kept_in_the_checkpoint(saves_after):
    sizes = SIZES["uneven-batches"]
    result = simulate(train, len(sizes), args=(data(*sizes), saves_after))
    result.raise_for_verdict()
    for state in result.returns:
        torch.testing.assert_close(dict(state), expected(data(*sizes)), rtol=1e-12, atol=1e-12)


def test_both_counts_travel_in_one_collective():
    sizes = SIZES["uneven-batches"]
    result = simulate(train, len(sizes), args=(data(*sizes),))
    for rank, own in enumerate(sizes):
        calls = [e.call for e in result.trace if e.kind is EventKind.ISSUE and e.rank == rank]
        signatures = [call.signature for call in calls if call.origin.phase is Phase.BUFFERS]
        assert [(s.operation, s.reduction, s.dtype, s.shapes) for s in signatures] == [
            ("all_reduce", "SUM", "int64", ((2,),))
        ] * len(own)


def test_weighted_loss_as_a_script(capsys, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    runpy.run_path(str(PATH), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [line[:8] for line in lines] == [f"rank {rank}: " for rank in range(4)]
    (told,) = {line[8:] for line in lines}
    match = re.fullmatch(r"(\d+) positives, (\d+) negatives, ([\d.]+)", told)
    positives, negatives = int(match[1]), int(match[2])
    assert match[3] == f"{negatives / positives:.3f}"
    # Two rounds over batches of 5 samples, 6, and so on: two on rank 0, five on rank 3.
    assert positives + negatives == 2 * sum(sum(range(5, 7 + rank)) for rank in range(4))
