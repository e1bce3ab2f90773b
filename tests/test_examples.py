"""The examples do what they say, and their own tests pass and find the mistakes that are planted in them."""

from __future__ import annotations

import importlib
import io
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpsim import simulate
from ddpsim.simulator.calls import Phase
from ddpsim.simulator.events import EventKind
from tests.kit.results import returned
from tests.kit.rows import rows

FOLDER = Path(__file__).resolve().parents[1] / "examples"
PATH = FOLDER / "weighted_loss.py"
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


@rows("sizes", SIZES.values(), ids=SIZES)
def test_weighted_loss(sizes):
    batches = data(*sizes)
    returns = returned(train, len(sizes), args=(batches,))
    wanted = expected(batches)
    assert wanted["all_positives"] > 0
    assert wanted["all_positives"] + wanted["all_negatives"] == sum(map(sum, sizes))
    for state in returns:
        torch.testing.assert_close(dict(state), wanted, rtol=1e-12, atol=1e-12, check_dtype=True)


@pytest.mark.parametrize("saves_after", [1, 2])
def test_counts_are_kept_in_the_checkpoint(saves_after):
    sizes = SIZES["uneven-batches"]
    for state in returned(train, len(sizes), args=(data(*sizes), saves_after)):
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


@pytest.fixture
def example(monkeypatch):
    """Imports a file of the folder by its name, as the tests there do."""
    known = set(sys.modules)
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(FOLDER)):
            del sys.modules[name]


def codes(result):
    return [(str(finding.code), finding.ranks) for finding in result.findings]


@pytest.mark.tier("ci")
def test_the_tests_of_the_examples():
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", FOLDER]
    output = subprocess.run(command, cwd=FOLDER.parent, stdout=subprocess.PIPE, text=True, check=False).stdout
    told = re.findall(r"^examples/(\S+\.py)::(\S+) (\w+)", output, re.MULTILINE)
    assert told == [
        ("test_communication_hook.py", "test_it_trains_as_one_process_would", "PASSED"),
        *(("test_communication_hook.py", f"test_in_any_interleaving[seed{n}]", "PASSED") for n in range(5)),
        ("test_communication_hook.py", "test_what_is_kept_by_bucket_goes_to_other_parameters", "PASSED"),
        ("test_communication_hook.py", "test_a_hook_that_makes_no_call_on_some_ranks", "PASSED"),
        ("test_joinable.py", "test_every_rank_has_the_losses_of_all_steps", "PASSED"),
        ("test_joinable.py", "test_in_every_interleaving", "PASSED"),
        ("test_joinable.py", "test_a_shadow_that_forgets_a_collective", "PASSED"),
        ("test_joined.py", "test_every_rank_ends_with_the_model_of_plain_training", "PASSED"),
        ("test_joined.py", "test_the_rank_that_joins_first_may_be_the_last_one", "PASSED"),
        ("test_joined.py", "test_without_join_it_hangs", "PASSED"),
    ], output


@pytest.mark.parametrize(("name", "findings"), [("hang", [("deadlock.missing_rank", (2,))]), ("joined", [])])
def test_what_join_mends(example, name, findings):
    assert codes(simulate(example(name).train, 4)) == findings


def test_who_joins_when(example):
    (joining,) = simulate(example("joined").train, 4).joins
    assert [(each.rank, each.step) for each in joining.ranks] == [(2, 4), (0, 5), (1, 5), (3, 5)]


def test_the_hook_keeps_what_it_does_not_send(example):
    """Of what goes into it, nothing is lost: what came out times the ranks, and what is kept, add up to it."""
    hook = example("communication_hook")

    def train(rank):
        kept, total_in, total_out = {}, {}, {}

        def add(totals, gradients):
            for parameter, gradient in zip(kept, gradients, strict=True):
                totals[parameter] = totals.get(parameter, 0) + gradient

        def watched(_, bucket):
            kept.update({each: kept.get(each, torch.zeros_like(each)) for each in bucket.parameters()})
            before = dict(zip(bucket.parameters(), [each.clone() for each in bucket.gradients()], strict=True))
            add(total_in, [before[parameter] for parameter in kept])
            return hook.send_larger_half(kept, bucket)

        model = nn.parallel.DistributedDataParallel(hook.make_model())
        model.register_comm_hook(None, watched)
        for batch in hook.batches(rank):
            model.zero_grad()
            model(batch).square().mean().backward()
            add(total_out, [parameter.grad.clone() for parameter in kept])
        for parameter in kept:
            put_in = total_in[parameter] - kept[parameter]
            dist.all_reduce(put_in)
            torch.testing.assert_close(total_out[parameter] * dist.get_world_size(), put_in)

    assert codes(simulate(train, 3)) == []


@pytest.mark.parametrize("name", ["communication_hook", "joinable", "joined"])
def test_a_training_as_a_script(name, capsys, monkeypatch):
    for key, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(key, value)
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert re.fullmatch(r"rank 0: (bias|means) \S.*\n", capsys.readouterr().out)
    assert not dist.is_initialized()
