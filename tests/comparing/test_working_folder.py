"""What ranks write in the working folder: the reference does not find it, and the user does."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import ddpsim
from ddpsim.simulator.comparing import working_folder
from ddpsim.simulator.comparing.comparison import Answer
from ddpsim.simulator.comparing.working_folder import Writes, times_of_files, working_folder_without, writes_since
from tests.comparing import trainings


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data/part").mkdir(parents=True)
    Path("data/part/a.txt").write_text("a")
    Path("out/old").mkdir(parents=True)
    Path("out/log.txt").write_text("before")


def write_as_ranks():
    os.utime("out/log.txt", (0, 0))
    before = times_of_files()
    Path("new/deep").mkdir(parents=True)
    Path("out/old/model.pt").write_text("of the ranks")
    Path("out/log.txt").write_text("of the ranks")
    return writes_since(before)


def test_what_was_written():
    found = write_as_ranks()
    assert found.made == {"new", "out/old/model.pt"}
    assert found.changed == {"out/log.txt"}
    assert found.folders == {"out", "out/old"}
    assert list(found.notes()) == [
        "the reference did not find new, out/old/model.pt, made while the ranks ran",
        "the reference found out/log.txt as changed while the ranks ran",
    ]
    assert writes_since(times_of_files()) == Writes()


def test_of_many_files_those_in_outer_folders_are_looked_at(monkeypatch):
    monkeypatch.setattr(working_folder, "_MOST_FILES", 1)
    found = write_as_ranks()
    assert (found.made, found.changed) == ({"new"}, set())


def test_another_folder_has_what_was_there_and_the_own_one_stays_as_it_is(tmp_path):
    writes = write_as_ranks()
    with suppress(KeyError), working_folder_without(writes):
        assert Path.cwd() != tmp_path
        assert sorted(map(str, Path().rglob("*"))) == ["data", "out", "out/log.txt", "out/old"]
        assert Path("data/part/a.txt").read_text() == "a"
        assert Path("out/log.txt").read_text() == "of the ranks"
        Path("out/log.txt").write_text("of the reference")
        Path("out/old/model.pt").write_text("of the reference")
        Path("new").write_text("of the reference")
        (tmp_path / "notes.txt").write_text("of another process")
        raise KeyError
    assert Path.cwd() == tmp_path
    assert Path("new/deep").is_dir()
    assert Path("data/part/a.txt").read_text() == "a"
    assert Path("notes.txt").read_text() == "of another process"
    assert {Path(name).read_text() for name in ("out/log.txt", "out/old/model.pt")} == {"of the ranks"}


def test_without_writes_it_is_the_folder_itself(tmp_path):
    with working_folder_without(Writes()):
        assert Path.cwd() == tmp_path


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.tier("ci"))])
@pytest.mark.parametrize("path", ["saved.pt", "out/old/saved.pt", "other/saved.pt"])
def test_a_reference_does_not_find_the_checkpoint_of_the_ranks(path, isolation):
    found = ddpsim.compare(trainings.resumed, 2, args=(path,), isolation=isolation)
    assert found.is_same, found
    assert found.line.startswith("2 steps, in each ")
    assert found.notes == ()
    saved = torch.load(path)
    Path(path).unlink()
    ddpsim.simulate(trainings.resumed, 2, args=(path,))
    again = torch.load(path)
    assert all(torch.equal(saved[name], again[name]) for name in again)  # it is that of the ranks


def test_a_reference_that_goes_on_from_a_file_that_the_ranks_changed():
    Path("saved.pt").touch()
    found = ddpsim.compare(trainings.resumed, 2, args=("saved.pt",))
    assert found.answer is Answer.UNKNOWN
    assert found.line.startswith("1 step is the same, but 1 rank made 1 step, and 2 ranks more: ")
    assert found.notes == ("the reference found saved.pt as changed while the ranks ran",)
    assert Path("saved.pt").stat().st_size


def test_it_is_said_what_the_reference_did_not_find():
    found = ddpsim.compare(trainings.cached, 2)
    assert found.answer is Answer.UNKNOWN
    assert found.notes == ("the reference did not find cache.pt, made while the ranks ran",)
