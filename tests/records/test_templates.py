"""Pickles known by their bytes: what a template takes for the same is what reading it as a whole gives."""

import copy
import random
import re

import pytest

from ddpsim.simulator.records.entries import EntriesReader
from ddpsim.simulator.records.rank_record import RecordError
from ddpsim.simulator.records.record_forms import JobReader
from tests.kit.rows import rows
from tests.records.dumps import call, job, pickled

GROUPS = {"1": (0, 1, 2), "2": (3, 4)}
FIELDS = ("rank", "source", "groups", "sites", "members", "lost", "not_recorded", "form", "is_in_one_group")


def dumps(ranks=5, **tail):
    """Ranks that did the same in groups of two names, with times and threads of their own."""
    own = [[call(), call("broadcast", group="1" if rank < 3 else "2"), call(line=21)] for rank in range(ranks)]
    made = job(own, {name: members for name, members in GROUPS.items() if max(members) < ranks})
    for rank, each in made.items():
        for number, entry in enumerate(each["entries"]):
            entry |= {"time_created_ns": 10**18 + 10**6 * rank + number, "duration_ms": rank + 0.5}
            entry |= {"thread_id": f"{rank:x<{rank + 7}}", "pg_id": int(number == 1)}
        each |= {name: value(rank) for name, value in tail.items()}
    return [in_one_place(each) for each in made.values()]


def in_one_place(value):
    """The same, with equal texts as one object: torch writes each once."""
    known = {}

    def same(each):
        if isinstance(each, dict):
            return {same(key): same(inner) for key, inner in each.items()}
        if isinstance(each, (list, tuple)):
            return type(each)(same(inner) for inner in each)
        return known.setdefault(each, each) if isinstance(each, str) else each

    return same(copy.deepcopy(value))


def reader_of(several):
    """A reader that has read some dumps."""
    reader = JobReader()
    for rank, each in enumerate(several):
        reader.read_record(pickled(each), f"rank_{rank}")
    return reader


@pytest.fixture
def wholly_read(monkeypatch):
    """How often entries were read, rather than known by their bytes."""
    counted = []
    whole = EntriesReader.read_entries
    monkeypatch.setattr(EntriesReader, "read_entries", lambda *args: counted.append(1) or whole(*args))
    return counted


def told(record):
    return [getattr(record, name) for name in FIELDS], list(record.calls)


def same_without(reader, several, data, name):
    """Read it by a reader with templates, and by one that has read the same dumps and has none."""
    other = JobReader(most_templates=0)
    for rank, each in enumerate(several):
        other.read_record(pickled(each), f"rank_{rank}")
    try:
        without = told(other.read_record(data, name))
    except RecordError as error:
        with pytest.raises(RecordError, match=f"^{re.escape(str(error))}$"):
            reader.read_record(data, name)
        return False
    assert told(reader.read_record(data, name)) == without
    return True


def test_what_differs_in_times_and_names_only_is_known_by_its_bytes(wholly_read):
    made = dumps()
    reader = reader_of(made[:2])
    wholly_read.clear()
    found = [reader.read_record(pickled(each), f"rank_{rank}") for rank, each in enumerate(made[2:], 2)]
    assert not wholly_read
    assert [record.groups for record in found] == [("default", "1"), ("default", "2"), ("default", "2")]
    assert len({id(record.call_log) for record in found}) == 1
    for rank, each in enumerate(made):
        assert same_without(reader, made[:3], pickled(each), f"rank_{rank}")


def test_what_stands_beside_the_entries_is_each_dumps_own(wholly_read):
    made = dumps(nccl_comm_state=lambda rank: {"0": {"rank": str(7 - rank), "nranks": "5", "at": (rank + 1) * 100_000}})
    reader = reader_of(made[:2])
    wholly_read.clear()
    assert [reader.read_record(pickled(each), "no number").rank for each in made[3:]] == [4, 3]
    assert not wholly_read


CHANGES = {
    "operation": lambda entry: entry.update(profiling_name="nccl:all_gathe_"),
    "size": lambda entry: entry.update(input_sizes=[[12]]),
    "dtype": lambda entry: entry.update(input_dtypes=["Doubl"]),
    "number": lambda entry: entry.update(collective_seq_id=9),
    "state": lambda entry: entry.update(state="completes"),
    "retired": lambda entry: entry.update(retired=False),
    "line": lambda entry: entry["frames"][1].update(line=99),
    "file": lambda entry: entry["frames"][1].update(filename="/job/train.pz"),
    "function": lambda entry: entry["frames"][1].update(name="trait"),
    "group": lambda entry: entry.update(process_group=("7", "undefined")),
    "group without a name": lambda entry: entry.update(process_group=("1", "default_pg")),
}


@rows("change", CHANGES.values(), ids=CHANGES)
@rows("index", range(3))
def test_what_differs_in_anything_that_counts_is_not_taken_for_the_same(change, index):
    made = dumps()
    reader = reader_of(made[:3])
    entry = made[3]["entries"][index]
    entry["frames"] = copy.deepcopy(entry["frames"])
    change(entry)
    assert same_without(reader, made[:3], pickled(made[3]), "rank_3")


def test_a_number_that_counts_is_compared_however_it_is_written():
    made = dumps()
    for rank, each in enumerate(made):
        each["entries"][2]["record_id"] = 2**40 + (rank == 4)
    reader = reader_of(made[:4])
    assert same_without(reader, made[:3], pickled(made[4]), "rank_4")


def test_two_groups_of_one_name_are_one():
    made = dumps()
    reader = reader_of(made[:3])
    made[3]["entries"][1]["process_group"] = ("0", "default_pg")
    made[3]["pg_config"].pop("2")
    assert same_without(reader, made[:3], pickled(in_one_place(made[3])), "rank_3")


@pytest.mark.parametrize("field", ["profiling_name", "state", "filename"])
def test_a_text_that_begins_as_marks_do_makes_no_template(field, wholly_read):
    made = dumps()
    for each in made:
        entry = each["entries"][0]
        (entry["frames"][1] if field == "filename" else entry)[field] = "\x001"
    reader = reader_of(made[:3])
    wholly_read.clear()
    reader.read_record(pickled(made[3]), "rank_3")
    assert wholly_read


SEEDS = [*range(10), *(pytest.param(seed, marks=pytest.mark.tier("nightly")) for seed in range(10, 200))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_pickle_is_read_as_it_is_alone(seed):
    draw, made = random.Random(seed), dumps()
    reader = reader_of(made[:3])
    data = pickled(made[3])
    for _ in range(40):
        at = draw.randrange(2, len(data))
        other = draw.choice([data[at] ^ (1 << draw.randrange(8)), draw.randrange(256)])
        same_without(reader, made[:3], data[:at] + bytes([other]) + data[at + draw.randrange(3) :], "rank_3")
    assert same_without(reader, made[:3], data, "rank_3")
