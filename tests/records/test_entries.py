"""Entries of dumps: what ranks share, and what a few bytes cannot ask for."""

import subprocess
import sys

import pytest

from ddpsim.simulator.records import entries as module
from ddpsim.simulator.records.entries import EntriesReader
from ddpsim.simulator.records.rank_record import RecordError
from ddpsim.simulator.records.record_forms import JobReader
from tests.kit.rows import rows
from tests.records.dumps import call, job, pickled, written

from .dumps import read

DONE, HUNG = call(), call(line=21, state="started")


def records(dumps):
    reader = JobReader()
    return [reader.read_record(pickled(each), f"rank_{rank}") for rank, each in dumps.items()]


def test_ranks_that_did_the_same_share_a_course_and_have_lines_and_groups_of_their_own():
    own = [[DONE, call(group=str(1 + rank // 2), line=rank)] for rank in range(4)]
    found = records(job(own, {"1": (0, 1), "2": (2, 3)}))
    assert len({id(record.call_log) for record in found}) == 1
    assert [record.groups for record in found] == [("default", "1")] * 2 + [("default", "2")] * 2
    assert [record.calls[1].call.rank for record in found] == [0, 1, 2, 3]
    assert [str(record.calls[1].call.site) for record in found] == [f"train.py:{rank}" for rank in range(4)]


@rows(
    "other",
    [
        [DONE, call(size=(12,))],
        [DONE, call("broadcast")],
        [DONE, call(dtype="int64")],
        [DONE, HUNG],
        [DONE],
        [DONE, call(group="1")],
        [DONE, call(collective_seq_id=9)],
    ],
)
def test_what_differs_in_anything_that_was_called_is_another_course(other):
    found = records(job([[DONE, DONE], other, [DONE, DONE]], {"1": (0, 1, 2)}))
    assert found[0].call_log is found[2].call_log
    assert found[0].call_log.steps != found[1].call_log.steps


def test_a_shared_course_costs_no_reading(monkeypatch):
    counted = []
    anew = EntriesReader._read_whole_dump
    monkeypatch.setattr(EntriesReader, "_read_whole_dump", lambda *args: counted.append(1) or anew(*args))
    records(job([[DONE] * 9] * 64))
    assert len(counted) == 1


def test_one_list_named_again_and_again_is_refused_before_it_is_read():
    sizes = [[7] * 5000] * 5000
    value = job([[DONE]] * 2)[0]
    value["entries"][0]["input_sizes"] = sizes
    value["entries"] *= 200
    data = pickled(value)
    assert len(data) < 50_000
    with pytest.raises(RecordError, match="the dump has shapes with more than 16777216 numbers, expected fewer"):
        read(data, "rank_0")


def test_too_many_entries_are_refused(monkeypatch):
    monkeypatch.setattr(module, "_MOST_ENTRIES", 3)
    with pytest.raises(RecordError, match="a flight recorder's dump with 4 entries, expected a list of at most 3"):
        records(job([[DONE] * 4]))


@pytest.mark.tier("ci")
def test_several_processes_read_what_one_does(tmp_path):
    folder = written(tmp_path / "dumps", job([[DONE, HUNG]] * 5 + [[DONE]]))
    (folder / "rank_9").write_bytes(b"\x80")
    # In a process of its own: one that has other threads, as pytest's may, does not fork.
    subprocess.run([sys.executable, "-c", _ALONE_AND_TOGETHER, str(folder)], check=True)


_ALONE_AND_TOGETHER = """
import os, sys
from ddpsim.scenarios.records import found_records as reading

alone = reading.find_records(sys.argv[1:])
reading._BYTES_OF_PROCESS = 100
os.sched_getaffinity = lambda _: {0, 1, 2}
assert len(reading._split_among_processes(list(reading.find_sources(sys.argv[1:])))) == 3
together = reading.find_records(sys.argv[1:])
assert [list(each.calls) for each in together.records] == [list(each.calls) for each in alone.records]
assert (together.left_out, len(together.left_out)) == (alone.left_out, 1)
"""
