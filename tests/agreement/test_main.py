"""`python -m tests.agreement`: the simulator and gloo agree, and a disagreement is told, saved and replayed."""

import re
from functools import partial

import pytest

from ddpsim.scenarios.cli.status import ExitStatus
from ddpsim.scenarios.jobs.rank_report import RankEnding, RankReport
from ddpsim.scenarios.ranks.interpreter import run_rank_steps
from tests.agreement import __main__ as command
from tests.agreement import comparison
from tests.agreement.gloo import on_gloo
from tests.agreement.labelled import labelled
from tests.agreement.saved import load, save
from tests.kit.rows import rows
from tests.programs.programs import program, received, sent, waited


def loses_a_value(rank, program):
    """A rank as it would be if simulator and gloo moved other bytes."""
    outputs = run_rank_steps(rank, program)
    for name, tensors in outputs.items():
        outputs[name] = [tensor._replace(content=bytes(len(tensor.content))) for tensor in tensors]
    return outputs


@pytest.mark.parametrize(
    "programs",
    [pytest.param(5, marks=pytest.mark.tier("ci")), pytest.param(60, marks=pytest.mark.tier("nightly"))],
)
def test_simulator_and_gloo_agree(capsys, server, programs):
    assert command.main(["--programs", str(programs)]) == ExitStatus.AS_EXPECTED
    assert f"\n{programs} programs, no disagreements, " in capsys.readouterr().out


@pytest.mark.tier("ci")
def test_a_disagreement_is_told_and_saved_and_replayed(capsys, monkeypatch, tmp_path, server):
    seed = next(
        seed for seed in range(100) if comparison.simulated(labelled(seed, (3, 3)).program).verdict.value == "pass"
    )
    with monkeypatch.context() as patched:
        patched.setattr(comparison, "on_gloo", partial(on_gloo, run=loses_a_value))
        status = command.main(["--programs", "1", "--seed", str(seed), "--world-size", "3", "--save", str(tmp_path)])
    assert status == ExitStatus.OTHERWISE
    path = tmp_path / f"disagreement-{seed}.json"
    told = capsys.readouterr().out
    assert re.search(rf"\nseed {seed} \(\w+\): 'c\d' on rank 0: .*\n  saved   {re.escape(str(path))}\n", told)
    assert load(path) == labelled(seed, (3, 3))
    assert command.main(["--replay", str(path)]) == ExitStatus.AS_EXPECTED
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.tier("ci")
def test_a_message_that_one_side_never_waits_for_arrives(server):
    programs = [
        program((sent("m", 1),), waited(received("m", 0))),
        program(waited(sent("m", 1)), (received("m", 0),)),
    ]
    reports = list(on_gloo((each, 10.0) for each in programs))
    assert {report.ending for each in reports for report in each} == {RankEnding.RETURNED}


def test_another_program_is_never_overwritten(tmp_path):
    def saved(size):
        each = labelled(3, (size, size))
        hung = [RankReport(0, RankEnding.HUNG, 0.0)] * size
        made = comparison.compare(each, comparison.simulated(each.program), hung)
        return save(made, tmp_path, world_size=str(size)).name

    (tmp_path / "disagreement-3-2.json").write_text("mine")
    assert [saved(size) for size in (2, 4, 2)] == [
        "disagreement-3.json",
        "disagreement-3-3.json",
        "disagreement-3.json",
    ]
    assert (tmp_path / "disagreement-3-2.json").read_text() == "mine"
    assert load(tmp_path / "disagreement-3-3.json") == labelled(3, (4, 4))


@rows("text", ["1", "65", "4..2", "2...4", "x"])
def test_world_sizes_that_are_none(text):
    with pytest.raises(SystemExit, match=r"^world size is '.*', expected a number from 2 to 64 or a range as 2\.\.4"):
        command.main(["--world-size", text])
