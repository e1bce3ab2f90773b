"""What ranks patch of their own stays theirs, and what they share is put back."""

import os
import sys

import pytest

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OURS")


@pytest.fixture(autouse=True)
def a_plain_process(monkeypatch):
    """No variables of a launcher, and one of our own."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OURS", "host")


def test_what_ranks_write_to_environ_does_not_reach_the_process(run):
    before = dict(os.environ)

    run("""
import os

@per_rank
def patched(rank, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "77")

@pytest.mark.ranks(2)
def test_all(rank, monkeypatch, patched):
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("OURS", str(rank))
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "8")
    monkeypatch.delenv("RANK")
    dist.barrier()
    assert (os.environ["OURS"], os.environ["MASTER_PORT"]) == (str(rank), "1")
    assert os.environ["LOCAL_RANK"] == "77" and "RANK" not in os.environ

def test_after():
    assert "RANK" not in os.environ and "MASTER_PORT" not in os.environ and os.environ["OURS"] == "host"
""").assert_outcomes(passed=2)
    assert {name: os.environ.get(name) for name in VARIABLES} == {name: before.get(name) for name in VARIABLES}


def test_what_a_fixture_outside_wrote_is_taken_back_whatever_ranks_do(run):
    run("""
import os

@pytest.fixture
def written(monkeypatch):
    monkeypatch.setenv("OURS", "fixture")
    monkeypatch.setenv("RANK", "fixture")

@pytest.mark.ranks(2)
def test_sees(rank, written, monkeypatch):
    assert os.environ["OURS"] == "fixture" and os.environ["RANK"] == str(rank)
    monkeypatch.setenv("OURS", str(rank))
    if rank:
        monkeypatch.undo()

def test_after():
    assert os.environ["OURS"] == "host" and "RANK" not in os.environ
""").assert_outcomes(passed=2)


def test_streams_and_arguments_are_each_ranks_own(run):
    streams, arguments = (sys.stdin, sys.stdout, sys.stderr), sys.argv
    result = run(
        """
import io, sys

@pytest.mark.ranks(2)
def test_all(rank, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr("sys.argv", ["a program", str(rank)])
    dist.barrier()
    print("to", rank)
    assert sys.stdout.getvalue() == f"to {rank}\\\\n" and sys.argv[1] == str(rank)

def test_after():
    assert "Rank" not in type(sys.stdout).__name__ and sys.argv[0] != "a program"
    print("seen")
    assert 0
""".replace("\\\\n", "\\n")
    )

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*Captured stdout call*", "seen"])
    assert (sys.stdin, sys.stdout, sys.stderr) == streams
    assert sys.argv is arguments


def test_an_attribute_that_all_share_is_put_back_in_the_end(run):
    run("""
class Shared:
    value = "first"

@pytest.mark.ranks(3, seeds=range(4))
def test_all(rank, monkeypatch):
    monkeypatch.setattr(Shared, "value", rank)
    dist.barrier()
    assert Shared.value in range(3)

def test_after():
    assert Shared.value == "first"
""").assert_outcomes(passed=5)
