"""Trainings on several ranks against one: a planted bug is found where it begins, its correct twin is the same."""

import json
import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

import ddpsim
from ddpsim.reports.forms.comparison import comparison_to_html
from ddpsim.scenarios.cli import main
from ddpsim.simulator.comparing import batches, explanation, records
from ddpsim.simulator.comparing.alignment import OTHER_START
from ddpsim.simulator.comparing.comparison import Answer
from ddpsim.simulator.comparing.printed import describe_other_line
from tests.comparing import trainings
from tests.kit.rows import rows

OWN = "each rank has its own, and their mean is the reference's"
AGAIN = "as if it were divided by 4, the number of ranks, once more"
SUM = "as if it were not divided by 4, the number of ranks"
SCALED = "gradients were clipped, or scaled, by another number than on the reference"
OUTPUTS = "its samples are the same, and so are the outputs before it"
COUNTS = "as where each divides by its own count"

BUGS = [
    ("wrapped", "loss times world", "the mean of the ranks' losses is x 4", "the loss is scaled"),
    ("wrapped", "loss times three", "the mean of the ranks' losses is x 3", ""),
    ("wrapped", "averaged twice", "gradient of 2.weight is x 1/4", AGAIN),
    ("wrapped", "summed after", "gradient of 2.weight is x 4", SUM),
    ("wrapped", "weight decay of rank", "parameter of 0.weight on ranks 1-3", "the gradients of the step are the same"),
    ("not_synchronised", "no_sync", "gradient of 2.weight differs", OWN),
    ("by_hand", "forgotten", "gradient of 2.weight differs", OWN),
    ("by_hand", "summed", "gradient of 2.weight is x 4", SUM),
    ("by_hand", "over pairs", "gradient of 2.weight differs", "ranks 0, 1 and ranks 2, 3 have one each, and the mean"),
    ("by_hand", "divided twice", "gradient of 2.weight is x 1/4", AGAIN),
    ("by_hand", "of rank 0", "gradient of 2.weight differs", ""),
    ("by_hand", "not reduced", "gradient of 2.weight differs", OWN),
    ("by_hand", "zeroed", "gradient of 2.weight on rank 1 is zero", ""),
    ("by_hand", "other start", "0.weight starts on rank 1 with other values", ""),
    ("accumulated", "each time", "gradient of 2.weight differs", ""),
    ("accumulated_in_ddp", "first only", "gradient of 2.weight differs", OWN),
    ("clipped", "before", "gradient before clipping of 2.weight differs", OWN),
    ("clipped", "norm over replicas", "gradient of 2.weight is x 1/2", SCALED),
    ("mixed", "averaged twice", "gradient of 2.weight is x 1/4", AGAIN),
    ("checkpointed", "divided twice", "gradient of Linear:weight is x 1/4", AGAIN),
    ("mixing", "forgotten", "gradient of head.bias differs", OWN),
    ("scaled", "scale of rank", "the mean of the ranks' losses differs", COUNTS),
    ("token_mean", "local count", "the mean of the ranks' losses differs", COUNTS),
    ("head_outside", "not reduced", "gradient of Linear:weight differs", OWN),
    ("by_index", "summed", "gradient of 2.weight is x 4", SUM),
    ("split", "input not summed", "gradient of before.weight differs", "their sum is the reference's"),
    ("split", "bias on each rank", "output of Split differs", OUTPUTS),
    ("split", "output not summed", "output of Split differs", OUTPUTS),
    ("split", "shards divided", "gradient of first_weight is x 1/4", AGAIN),
    ("split", "local norm", "gradient of second_weight differs", "as by a clip to the rank's own norm"),
    ("local_steps", "", "gradient of 2.weight differs", OWN),
    ("owned", "not sent", "output of 0 on ranks 0, 2, 3 differs", "its samples are the same"),
]
OF_DAY = ("averaged twice", "over pairs", "bias on each rank")
CORRECT = [name for name in dict.fromkeys(row[0] for row in BUGS) if name != "local_steps"]


def compare(name, bug="", world_size=4, **options):
    torch.manual_seed(0)
    return ddpsim.compare(getattr(trainings, name), world_size, args=(bug,), **options)


def check_bug(name, bug, line, cause, **options):
    found = compare(name, bug, **options)
    assert found.answer is Answer.DIFFERENT, found
    assert found.line.startswith(f"step {int(name == 'owned')}: {line}")
    causes = [each.text for each in found.lines if each.label == "cause"]
    assert (cause in causes[0]) if cause else not causes


@rows(("name", "bug", "line", "cause"), [row for row in BUGS if row[1] in OF_DAY])
def test_a_bug_is_found_where_it_begins(name, bug, line, cause):
    check_bug(name, bug, line, cause)


@pytest.mark.tier("ci")
@rows(("name", "bug", "line", "cause"), [row for row in BUGS if row[1] not in OF_DAY])
def test_each_bug_is_found_where_it_begins(name, bug, line, cause):
    check_bug(name, bug, line, cause)


@pytest.mark.tier("ci")
@rows("name", [*CORRECT, "normalised"])
def test_a_correct_training_is_the_same(name):
    found = compare(name)
    assert found.is_same, found
    assert found.line.startswith("2 steps, in each ")


def test_a_correct_training_says_what_was_compared():
    found = compare("split")
    assert str(found) == (
        "THE SAME  split on 4 ranks, against 1 rank\n"
        "  same    2 steps, in each 2 outputs, 6 gradients, 6 parameters\n"
        "  note    each of 4 ranks gets the same samples"
    )


def test_what_is_switched_off_is_said():
    notes = "BatchNorm without synchronisation uses its running statistics", "dropout is off"
    assert compare("normalised").notes == notes


@rows(
    ("name", "bug", "line"),
    [
        (
            "own_samples",
            "",
            "at step 0 the reference saw other samples: 4 for 16; if ranks draw their own, it cannot",
        ),
        (
            "averaged_parameters",
            "",
            "step 0: gradient of 2.weight differs by 289 % on each rank, and the outputs of step 1 are the same: ...",
        ),
        (
            "wrapped",
            "rate of world",
            "at step 0 the learning rate of group 0 is x 4, and all gradients are the same: ...",
        ),
    ],
)
def test_what_one_rank_cannot_repeat_is_not_known(name, bug, line):
    found = compare(name, bug)
    assert found.answer is Answer.UNKNOWN
    assert found.line.startswith(line.removesuffix("..."))


def test_a_pipeline_of_two_stages():
    assert compare("staged", world_size=2).is_same
    check_bug("staged", "micro-batches summed", "gradient of 2.weight on rank 1 is x 2", SCALED, world_size=2)


@pytest.mark.tier("ci")
@rows(
    ("bug", "line", "cause"),
    [
        ("", "", ""),
        ("divided again", "gradient of 2.weight is x 1/2", AGAIN.replace("4", "2")),
        ("zero on a shard", "gradient of 2.weight on rank 1 is zero", ""),
        ("local norm", "gradient of 2.weight differs", ""),
    ],
)
def test_fsdp2(bug, line, cause):
    if line:
        check_bug("sharded", bug, line, cause, world_size=2, isolation="process")
    else:
        assert compare("sharded", bug, 2, isolation="process").is_same


@pytest.mark.tier("ci")
@pytest.mark.parametrize(
    ("bug", "line"),
    [
        ("", "4 steps, in each 1 output, 6 gradients, 6 parameters"),
        ("divided again", "step 0: gradient of FSDPSequential:3.weight is x 1/2"),
        ("other start", f"not compared on ranks 0, 1: FSDPSequential:3.weight, which {OTHER_START}"),
    ],
)
def test_of_parts_of_a_model_that_ranks_have_the_names_are_those_of_the_whole(bug, line):
    assert compare("in_parts", bug, 2, isolation="process").line == line


@pytest.mark.tier("ci")
@pytest.mark.parametrize(
    ("bug", "line"),
    [
        ("", "2 steps, in each 1 gradient, 1 parameter"),
        ("left to torch", "2 steps, in each 1 gradient, 1 parameter"),
        ("norm over replicas", "step 0: norm at trainings.py:N is x sqrt(2)"),
    ],
)
def test_a_norm_that_one_rank_rounds_otherwise_is_no_other_clip(bug, line):
    assert re.sub(r"py:\d+", "py:N", compare("clipped_by_own_norm", bug, 2, isolation="process").line) == line


@pytest.mark.tier("nightly")
def test_hsdp():
    assert compare("sharded", "replicas", isolation="process").is_same
    check_bug("sharded", "replicas divided", "gradient of 2.weight is x 1/4", AGAIN, isolation="process")


@pytest.mark.tier("ci")
def test_a_sharded_optimizer():
    assert compare("zero", world_size=2, isolation="process").is_same


@pytest.mark.tier("ci")
def test_a_reference_that_starts_otherwise_says_nothing_of_what_differs():
    found = compare("by_hand", "start of world")
    line = "not compared on ranks 0-3: 2.weight, which starts with other values than on the reference"
    assert (found.answer, found.line) == (Answer.UNKNOWN, line)


def test_no_hook_is_left():
    """torch's handle of a global hook with keyword arguments does not remove all of it."""
    compare("of_other_width", world_size=2)
    assert not torch.nn.modules.module._has_any_global_hook()


@pytest.mark.tier("ci")
def test_wrong_elements_are_noted_as_in_a_run():
    found = compare("by_hand", "laid out otherwise")
    assert found.line.startswith("step 0: gradient of 2.weight differs")
    assert found.notes[-1].startswith("wrong elements: the tensor of scatter #0 (trainings.py:")


def test_ranks_with_other_models_are_not_replicas():
    found = compare("of_other_width", world_size=2)
    assert found.answer is Answer.UNKNOWN
    assert found.line.startswith("not compared on rank 1: ")


def test_two_models_in_one_step_and_no_step_at_all():
    assert compare("head_outside").is_same
    found = ddpsim.compare(lambda rank: None, 2)
    assert (found.answer, found.line) == (
        Answer.UNKNOWN,
        "no optimizer of torch stepped a model that ran in training: nothing is compared",
    )


@pytest.mark.tier("ci")
def test_fewer_ranks_that_make_more_steps():
    assert compare("fixed_count").line == (
        "1 step is the same, but 4 ranks made 1 step, and 1 rank more: "
        "if the world size decides that, give the reference arguments by --against that make as many"
    )


def test_exactly_nothing_is_rounding():
    same = compare("wrapped", world_size=2, against=2, exact=True)
    assert (same.answer, same.line[-13:]) == (Answer.SAME, ", bit for bit"), same
    assert compare("wrapped", world_size=2).is_same
    found = compare("wrapped", world_size=2, exact=True)  # one rank adds in another order
    assert (found.answer, found.step) == (Answer.DIFFERENT, 0)


def test_a_function_may_be_the_reference():
    found = compare("by_hand", world_size=2, against=trainings.by_hand)
    assert found.is_same, found
    assert found.against == "by_hand on 1 rank"
    found = compare("by_hand", "summed", world_size=2, against=lambda *_: trainings.by_hand(0))
    assert found.line.startswith("step 0: gradient of 2.weight is x 2"), found


@pytest.mark.tier("ci")
def test_a_padded_pass_of_a_training_is_repeated():
    found = compare("padded")
    assert found.is_same, found
    assert found.line.startswith("2 steps, in each ")
    assert compare("padded", "again").line == "step 0: gradient of 2.weight is x 1/4"


@pytest.mark.tier("ci")
def test_a_model_that_goes_on_with_what_was_trained():
    """It begins with values that rounding has moved."""
    found = compare("continued")
    assert found.is_same, found
    assert found.line.startswith("4 steps, in each ")
    found = compare("continued", "other start")
    assert found.answer is Answer.DIFFERENT
    assert found.line.startswith("step 2: Sequential:0.weight starts on rank 1 with other values than on rank 0")


@pytest.mark.tier("ci")
def test_schedulers_of_accelerate_step_as_often_as_on_the_ranks(monkeypatch):
    module = ModuleType("accelerate.scheduler")
    module.AcceleratorState = lambda: SimpleNamespace(num_processes=torch.distributed.get_world_size())
    monkeypatch.setitem(sys.modules, module.__name__, module)
    of_accelerate = module.AcceleratorState
    found = compare("scheduled")
    assert found.is_same, found
    assert found.notes == ("accelerate steps a scheduler 4 times a step, once for each rank: so does the reference",)
    assert module.AcceleratorState is of_accelerate
    found = compare("scheduled", "by hand")
    assert found.answer is Answer.UNKNOWN
    assert "at step 1 the learning rate of group 0 is x 0.25, and all gradients are the same" in found.line


PROGRAM = """
    import argparse, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--summed", action="store_true")
    batch, summed = vars(parser.parse_args()).values()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(0)
    for step in range(2):
        rows = torch.randn(4, 3, generator=generator)
        rank = dist.get_rank()
        optimizer.zero_grad()
        model(rows[rank * batch : (rank + 1) * batch]).square().mean().backward()
        if summed:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
    dist.destroy_process_group()
"""


@rows(
    ("own", "reference", "twin", "told"),
    [
        ("epoch 0 acc 0.310\n", "epoch 0 acc 0.308\n", "epoch 0 acc 0.308\n", True),
        ("loss 0.50001 at 2 ranks\n", "loss 0.50000 at 1 ranks\n", "loss 0.5\n", False),
        ("took 3.1 s\n", "took 2.5 s\n", "took 1.9 s\n", False),
        ("loss 0.5\nloss 0.7\n", "loss 0.6\n", "loss 0.6\n", False),
        ("step 3\n", "step 4\n", "step 4\n", False),
        ("lr 1e-3, loss .5e1\n", "lr 1e-3, loss .6e1\n", "lr 1e-3, loss .6e1\n", True),
    ],
)
def test_a_printed_number_that_is_another_one_is_noted(own, reference, twin, told):
    text = f'printed "{own.strip()}", where the reference printed "{reference.strip()}"; a rank may print its own part'
    assert describe_other_line(own, reference, twin) == (text if told else "")


@pytest.mark.parametrize(("noise", "answer"), [(0, Answer.SAME), (16, Answer.UNKNOWN)])
def test_a_metric_that_is_a_mean_of_means_is_noted(noise, answer, capsys):
    def program(rank, bug=""):
        model = trainings.network()
        model(torch.ones(1, 8)).sum().backward()
        if bug and torch.distributed.get_world_size() == 2:
            model[0].weight.grad *= 1 + noise * 2**-23
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        own = torch.tensor([0.0, 1, 4, 9, 16])[rank :: torch.distributed.get_world_size()]
        total = torch.tensor([own.mean(), 1] if bug else [own.sum(), len(own)])
        torch.distributed.all_reduce(total)
        if rank == 0:
            print(f"metric {total[0] / total[1]:.3f}")

    found = ddpsim.compare(program, 2, args=("mean of means",))
    assert found.answer is answer
    assert found.notes[-1].startswith('printed "metric 5.833", where the reference printed "metric 6.000"')
    assert not any("printed" in note for note in ddpsim.compare(program, 2).notes)
    assert capsys.readouterr().out == "metric 5.833\nmetric 6.000\n"


@pytest.mark.tier("ci")
def test_on_the_console(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(textwrap.dedent(PROGRAM), encoding="utf-8")

    def run(*words):
        return main(["compare", "--world-size", "2", *words]), capsys.readouterr().out

    status, text = run("train.py")
    assert (status, text.splitlines()[1]) == (
        3,
        "  why     at step 0 the reference saw other samples: 2 for 4; if ranks draw their own, it cannot",
    )
    status, text = run("--against", "1", "--json", "train.py", "--summed")
    assert (status, json.loads(text)["answer"]) == (3, "not known")
    status, text = run("--against", "--batch 2", "train.py")
    assert (status, text.splitlines()[0]) == (0, "THE SAME  train.py on 2 ranks, against --batch 2 on 2 ranks")
    status, text = run("--exact", "--against", "--batch 2", "train.py")
    assert (status, text.splitlines()[1][-14:]) == (0, "s, bit for bit")
    status, text = run("--against", "1 --batch 4", "train.py")
    assert (status, text.splitlines()[0]) == (0, "THE SAME  train.py on 2 ranks, against --batch 4 on 1 rank")
    status, text = run("--against", "--summed", "--report", "answer", "--json", "train.py")
    assert json.loads(Path("answer/result.json").read_text(encoding="utf-8")) == json.loads(text)
    assert {each.name for each in Path("answer").iterdir()} == {"report.html", "report.txt", "result.json"}
    found = json.loads(text)
    assert (status, found["line"]) == (1, "step 0: gradient of weight is x 1/2")
    assert found["first"]["factor"] == pytest.approx(0.5)


@pytest.mark.parametrize("bug", ["", "halved", "not reduced"])
def test_of_gradients_that_a_clip_by_hand_scales_the_odd_one_is_first(bug):
    def program(rank):
        model = trainings.network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, labels in trainings.loader():
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            for name, each in model.named_parameters():
                odd = bug if name == "2.bias" else ""
                if odd != "not reduced":
                    torch.distributed.all_reduce(each.grad)
                    each.grad /= torch.distributed.get_world_size() ** (2 if odd else 1)
            norm = torch.stack([each.grad.norm() for each in model.parameters()]).norm()
            for each in model.parameters():
                each.grad *= 0.01 / norm
            optimizer.step()

    found = ddpsim.compare(program, 2)
    assert found.is_same is (bug == "")
    if bug:
        assert found.line.startswith("step 0: gradient of 2.bias ")
        assert ("is x 1/2, where others on rank 0 are x 1." in found.line) is (bug == "halved")


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize("is_reduced", [True, False])
def test_parameters_that_the_program_steps_by_hand_are_compared(is_reduced, is_late):
    def program(rank):
        model, probe = torch.nn.parallel.DistributedDataParallel(trainings.network()), torch.nn.Linear(3, 3, bias=False)
        probe.weight.data.copy_(torch.eye(3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, labels in trainings.loader():
            outputs = model(inputs)
            loss = torch.nn.functional.cross_entropy(outputs, labels)
            if not is_late:
                loss = loss + torch.nn.functional.cross_entropy(probe(outputs.detach()), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if is_late:
                torch.nn.functional.cross_entropy(probe(outputs.detach()), labels).backward()
            if is_reduced:
                torch.distributed.all_reduce(probe.weight.grad)
                probe.weight.grad /= torch.distributed.get_world_size()
            probe.weight.data -= 0.3 * probe.weight.grad
            probe.weight.grad = None

    found = ddpsim.compare(program, 2)
    assert found.is_same is is_reduced
    assert (records.BY_HAND in found.notes) is is_reduced  # else the first step is the last one that is compared
    if not is_reduced:
        first = 1 if is_late else 0  # the first that begins with the probe known
        assert found.line.startswith(f"step {first}: written parameter of Linear:weight")


def _added_on_arrival(rank, bug=""):
    """Rank 0 adds the gradients of others as they arrive, or with a bug those that arrive in the order of ranks."""
    model, size = trainings.network(), torch.distributed.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, labels = trainings.samples(12)
    outputs = model(inputs.chunk(size)[rank])
    torch.nn.functional.cross_entropy(outputs, labels.chunk(size)[rank], reduction="sum").backward()
    for each in model.parameters():
        if rank:
            torch.distributed.send(each.grad, 0)
        for number in range(1, size) if rank == 0 else ():
            got = torch.empty_like(each)
            source = torch.distributed.recv(got)
            each.grad += got * (number == source or not bug)
        torch.distributed.broadcast(each.grad, 0)
    optimizer.step()


@pytest.mark.tier("ci")
@rows("bug", ["", "by number"])
def test_each_schedule_is_held_against_one_reference(bug):
    options = {"args": (bug,), "check": "reference"}
    found = ddpsim.explore(_added_on_arrival, 3, budget=ddpsim.Budget(executions=30, seconds=300), **options)
    assert (found.first_failure is not None) is bool(bug), found
    if bug:
        (finding,) = found.first_failure.findings
        assert finding.code == "divergence.gradients"
        assert finding.summary.startswith("against 1 rank: step 0: gradient of ")
        assert found.first_pass is not None
        again = ddpsim.replay(_added_on_arrival, 3, found.first_failure.schedule, **options)
        assert again.findings[0].summary == finding.summary
    jobs = ddpsim.explore(_added_on_arrival, 3, budget=ddpsim.Budget(executions=30, seconds=300), jobs=2, **options)
    assert (jobs.outcomes, jobs.executions) == (found.outcomes, found.executions)


@pytest.mark.parametrize("start", [4, 11])
def test_parts_that_overlap_for_padding_are_no_bug(start):
    def program(rank):
        model = trainings.network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.utils.data.TensorDataset(*trainings.samples(28))
        own = range(start, start + 16) if rank else range(16)
        if torch.distributed.get_world_size() == 1:
            own = range(28)
        for inputs, labels in torch.utils.data.DataLoader(data, 8, sampler=own):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            trainings.reduce_gradients(model)
            optimizer.step()

    assert ddpsim.compare(program, 2).is_same is (start == 11)
    findings = ddpsim.simulate(program, 2, check="reference").findings
    assert [each.code for each in findings] == ["divergence.parameters"] * (start == 4)


def test_a_part_of_the_reference_that_no_rank_has_is_named():
    def program(rank):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(4, 4) for _ in range(2)]
        inputs = torch.randn(3, 4)
        model = torch.nn.Sequential(*layers[: 3 - torch.distributed.get_world_size()])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(inputs).square().mean().backward()
        optimizer.step()

    found = ddpsim.compare(program, 2)
    assert found.answer is Answer.UNKNOWN
    assert found.line == "no rank starts with what the reference has as 1.weight, 1.bias"


def test_a_factor_near_one_is_not_said_to_be_one():
    assert [explanation._factor_text(factor, 2, 1e-6) for factor in (1.000035, 0.974, 2.0)] == [
        "1.000035",
        "0.974",
        "2",
    ]


class _OwnLoader(torch.utils.data.DataLoader):
    """A loader that makes iterators by itself, as that of torchdata does."""

    def __iter__(self):
        self._iterator = self._get_iterator()
        return self._iterator


def test_a_loader_with_its_own_iter_gives_the_batches_of_all_ranks():
    def program(rank):
        model = trainings.network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.utils.data.TensorDataset(*trainings.samples(24))
        half = range(rank * 12, rank * 12 + 12)
        for inputs, labels in _OwnLoader(data, 4, sampler=half):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            trainings.reduce_gradients(model)
            optimizer.step()

    found = ddpsim.compare(program, 2)
    assert found.is_same, found


@pytest.mark.parametrize(("against", "count"), [(1, 24), (2, 12)])
@pytest.mark.parametrize("is_left_early", [False, True])
def test_loaders_of_the_reference_give_all_samples_after_the_last_recorded_step(against, count, is_left_early):
    seen: dict[int, list[set[float]]] = {}

    def program(rank):
        model, data = trainings.network(), torch.utils.data.TensorDataset(*trainings.samples(24))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        world = torch.distributed.get_world_size()
        sampler = torch.utils.data.DistributedSampler(data, world, rank, shuffle=False)
        loader = torch.utils.data.DataLoader(data, 3, sampler=sampler)
        seen[rank] = []
        for epoch in range(3):
            read = set[float]()
            for inputs, labels in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(inputs), labels).backward()
                trainings.reduce_gradients(model)
                optimizer.step()
                read |= set(inputs.sum(dim=1).tolist())
                if is_left_early and epoch:
                    break
            seen[rank].append(read)
        seen[rank].append({float(len(inputs)) for inputs, _ in loader})
        seen[rank].append({float(len(loader))})

    found = ddpsim.compare(program, 4, against=against, steps=1)
    assert found.is_same, found
    later = count // 2 if is_left_early else count
    assert [len(read) for read in seen[0][:3]] == [count, later, later]
    assert len(set[float]().union(*(seen[rank][1] for rank in range(against)))) == later * against
    assert seen[0][3:] == [{12.0 / against}, {2.0}]


def test_the_check_of_a_run_names_all_ranks_and_says_what_it_compared():
    doubled = ddpsim.simulate(trainings.wrapped, 2, args=("loss times world",), check="reference")
    assert (doubled.findings[0].code, doubled.findings[0].ranks) == ("divergence.gradients", (0, 1))
    assert ddpsim.simulate(trainings.wrapped, 2, check="reference").notes[0].startswith("against 1 rank: ")


def test_a_run_whose_training_is_not_comparable_is_unknown():
    result = ddpsim.simulate(trainings.own_samples, 2, check="reference")
    assert (result.verdict, result.findings[0].code) == (ddpsim.Verdict.UNKNOWN, "unchecked")


def test_the_page_shows_each_tensor_in_each_step():
    found = compare("local_steps")
    values = found.as_json()
    assert [len(step) for step in values["history"]] == [len(found.history[0])]
    page = comparison_to_html({**values, "program": "<b>"}).decode()
    assert page.count("<rect") == sum(map(len, found.history))
    assert "<td>&gt;</td><td><bdi>gradient 2.weight</bdi></td>" in page
    assert "<h1><bdi>&lt;b&gt;</bdi>, against <bdi>1 rank</bdi></h1>" in page


def test_the_page_of_what_was_not_compared():
    page = comparison_to_html(ddpsim.compare(lambda rank: None, 2).as_json()).decode()
    assert "no optimizer of torch stepped a model" in page
    assert "<svg" not in page


@rows(
    ("options", "line"),
    [
        ({"against": 0}, "against is 0, expected 1 to 4, the number of ranks: correct it"),
        (
            {"against": "--tp 1"},
            "against is '--tp 1', arguments, but only a program takes some: give a number of ranks",
        ),
        ({"steps": 0}, "steps is 0, expected a whole number from 1: correct it"),
    ],
)
def test_bad_arguments(options, line):
    with pytest.raises(ddpsim.UsageError) as raised:
        compare("by_hand", **options)
    assert str(raised.value) == line


def test_steps_that_were_not_recorded_are_counted():
    found = compare("wrapped", steps=1)
    assert (found.is_same, found.line) == (
        True,
        "1 step of 2, the others were not recorded, in each 5 outputs, 4 gradients, 4 parameters",
    )


@rows(
    ("constant", "room", "line", "answer"),
    [
        ("MOST_OF_FIRST_STEP", 2000, "the first step was not recorded whole", Answer.UNKNOWN),
        ("MOST_BYTES", 2000, "1 step of 2, ", Answer.SAME),
    ],
)
def test_a_step_that_fits_in_part_is_not_compared(monkeypatch, constant, room, line, answer):
    with monkeypatch.context() as patch:
        patch.setattr(records, constant, room)
        found = compare("wrapped")
    assert found.line.startswith(line)
    assert found.answer is answer


def test_batches_that_do_not_fit_are_not_blamed_on_the_training(monkeypatch):
    monkeypatch.setattr(batches, "RecordWriter", SmallWriter)
    found = compare("wrapped")
    assert (found.answer, found.line.partition(":")[0]) == (Answer.UNKNOWN, "the first step was not recorded whole")


class SmallWriter(records.RecordWriter):
    """Has room for no batch."""

    def __init__(self, file):
        super().__init__(file)
        self._left = 300


def test_parameters_that_a_rank_does_not_step_are_said():
    line = "compared only on the ranks that have a gradient: 2.weight, 2.bias, 0.weight, 0.bias"
    first, both = compare("owned", steps=1), compare("owned")
    assert (first.answer, first.line) == (Answer.UNKNOWN, line)
    assert (both.is_same, both.notes) == (True, (line,))


def test_a_buffer_that_each_rank_adds_to_is_the_same_if_the_ranks_together_have_that_of_one():
    def program(rank, scale=1.0):
        model = trainings.network()
        model.register_buffer("seen", torch.zeros(1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, labels in trainings.loader():
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            model.seen += scale * len(inputs) if rank else len(inputs)
            trainings.reduce_gradients(model)
            optimizer.step()

    assert ddpsim.compare(program, 2).is_same
    found = ddpsim.compare(program, 2, args=(1.5,))
    assert found.line.startswith("step 0: buffer of seen")


def test_metrics_are_not_held_against_a_reference_of_several_ranks():
    def program(rank):
        model = trainings.network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs, labels = trainings.samples(32)
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        with torch.no_grad():
            model.eval()
            right = (model(inputs).argmax(1) == labels)[rank :: torch.distributed.get_world_size()].sum().float()
        torch.distributed.all_reduce(right)

    assert ddpsim.compare(program, 4, against=2).is_same
