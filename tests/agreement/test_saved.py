"""Saved disagreements: what was saved comes back, and a damaged file is refused in one line with its name."""

import json

import pytest

from ddpsim import UsageError
from ddpsim.scenarios.agreement.breaking import labelled
from ddpsim.scenarios.agreement.comparison import compare, simulated
from ddpsim.scenarios.agreement.drawing import WORLD_SIZES
from ddpsim.scenarios.agreement.outcome import Ending, RankOutcome
from ddpsim.scenarios.agreement.saved import load, save
from ddpsim.simulator.programs.json_form import to_json
from tests.programs.programs import program


def saved(folder, seed, world_sizes=WORLD_SIZES):
    each = labelled(seed, world_sizes)
    outcomes = [RankOutcome(Ending.HUNG, error="timed out")] * each.program.world_size
    return save(compare(each, simulated(each.program), outcomes), folder, world_size="{}..{}".format(*world_sizes))


def test_round_trip(tmp_path):
    for seed in range(60):
        assert load(saved(tmp_path, seed)) == labelled(seed)


def test_what_both_said_stands_in_it(tmp_path):
    seed = next(seed for seed in range(100) if labelled(seed).kind.value == "none")
    path = saved(tmp_path, seed)
    assert path.name == f"disagreement-{seed}.json"
    value = json.loads(path.read_text())
    assert value["disagreement"] == "the simulator finds nothing, but on gloo rank 0 hung: timed out"
    assert value["simulator"] == []
    assert set(value["gloo"]) == {"hung: timed out"}
    assert (value["seed"], value["world_size"], value["kind"], value["rank"]) == (seed, "2..4", "none", None)


def test_another_program_is_never_overwritten(tmp_path):
    paths = [saved(tmp_path, 3, world_sizes) for world_sizes in ((2, 2), (4, 4), (2, 2), (5, 5), (4, 4))]
    names = ["disagreement-3.json", "disagreement-3-2.json", "disagreement-3-3.json"]
    assert [path.name for path in paths] == [names[0], names[1], names[0], names[2], names[1]]
    assert [load(tmp_path / name) for name in names] == [labelled(3, (size, size)) for size in (2, 4, 5)]


def test_nor_is_what_is_no_program(tmp_path):
    (tmp_path / "disagreement-3.json").write_text("mine")
    (tmp_path / "disagreement-3-2.json").mkdir()
    assert saved(tmp_path, 3).name == "disagreement-3-3.json"
    assert (tmp_path / "disagreement-3.json").read_text() == "mine"


def test_more_ranks_than_can_be_run_are_refused(tmp_path):
    path = saved(tmp_path, 0)
    value = json.loads(path.read_text())
    value["program"] = json.loads(to_json(program(*[()] * 65)))
    path.write_text(json.dumps(value))
    with pytest.raises(UsageError, match=r": world size is 65, expected at most 64: take a program of fewer ranks$"):
        load(path)


DAMAGE = {
    "format": ({"format": "other"}, 'found no "format": "ddpsim disagreement"'),
    "version": ({"version": 2}, "version is 2, expected 1"),
    "version-true": ({"version": True}, "version is True, expected 1"),
    "version-fraction": ({"version": 1.0}, "version is 1.0, expected 1"),
    "program": ({"program": None}, 'the file: found no "format": "ddpsim program"'),
    "seed": ({"seed": "3"}, "seed is '3', expected a whole number"),
    "kind": ({"kind": "odd"}, "kind is 'odd', expected one of none, missing, "),
    "rank": ({"rank": 9}, "rank is 9, expected one of "),
    "rank-true": ({"rank": True}, "rank is True, expected one of "),
}


@pytest.mark.parametrize("case", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_told_in_one_line_with_the_file(case, tmp_path):
    change, words = case
    path = saved(tmp_path, 0)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UsageError) as refusal:
        load(path)
    assert str(refusal.value).startswith(f"{path}: {words}")
    assert "\n" not in str(refusal.value)


def test_a_program_that_no_rank_could_run_is_refused(tmp_path):
    path = saved(tmp_path, 0)
    value = json.loads(path.read_text())
    value["program"]["ranks"][0] = [{"wait": "nothing"}]
    path.write_text(json.dumps(value))
    with pytest.raises(UsageError, match="rank 0 step 0: waits for 'nothing'"):
        load(path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[]"])
def test_what_is_no_json_is_refused(content, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UsageError) as refusal:
        load(path)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"cannot be read \(No such file or directory\)"):
        load(tmp_path / "none.json")
    with pytest.raises(UsageError, match=r"cannot be written \(No such file or directory\)"):
        saved(tmp_path / "none", 0)
