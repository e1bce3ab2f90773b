"""Pickles that are cut short: what is whole is read, and what is missing is said."""

import contextlib
import pickle
import pickletools

import pytest

from ddpsim import Code, Verdict
from ddpsim.simulator.records.job import combine_records
from ddpsim.simulator.records.plain_pickle import complete_cut_pickle
from ddpsim.simulator.records.rank_record import RecordError
from ddpsim.simulator.records.record_diagnosis import diagnose_job
from tests.records.dumps import call, job, pickled

from .dumps import read

DONE, HUNG = call(), call(line=21, state="started")


def diagnosis_of(dumps, cut):
    records = []
    for rank, each in dumps.items():
        data = pickled(each)
        records.append(read(data[: len(data) * 3 // 4] if rank == cut else data, f"rank_{rank}"))
    return diagnose_job(combine_records(records))


def as_torch_pickles(value):
    """Without the memo entries that nobody reads, as torch writes."""
    return pickletools.optimize(pickle.dumps(value, 2))


@pytest.mark.parametrize("form", [pickled, as_torch_pickles])
def test_each_cut_is_refused_or_the_entries_before_it(form):
    whole = job([[call(line=number, size=(number,)) for number in range(1, 5)]] * 2)[0]
    data, counts = form(whole), set()
    for length in range(0, len(data) - 1, 7):
        try:
            record = read(data[:length], "rank_0")
        except RecordError:
            continue
        assert record.is_cut
        shapes = [step.signature.shapes for step in record.call_log.steps]
        assert shapes == [((number,),) for number in range(1, len(shapes) + 1)]
        counts.add(len(shapes))
    assert {2, 3} <= counts <= {0, 1, 2, 3, 4}


def test_a_whole_pickle_and_one_that_is_no_dict_are_not_closed():
    assert complete_cut_pickle(pickled({"a": 1})) is None
    assert complete_cut_pickle(pickled([1, 2, 3])[:-1]) is None
    assert complete_cut_pickle(b"\x80\x02") is None


def test_nothing_that_is_imported_in_a_cut_pickle_runs(capsys):
    class Runs:
        def __reduce__(self):
            return print, ("ran",)

    data = pickle.dumps({"version": "2.10", "entries": [Runs(), Runs()]}, 2)
    for length in range(len(data)):
        with contextlib.suppress(RecordError):
            assert not read(data[:length], "rank_0").calls
    assert capsys.readouterr().out == ""


def test_a_rank_is_not_blamed_for_what_may_stand_behind_the_cut():
    calls = [[DONE] * 5 + [HUNG]] * 3
    diagnosis = diagnosis_of(job(calls), cut=1)
    [finding] = diagnosis.findings
    assert (diagnosis.verdict, finding.code, finding.ranks) == (Verdict.UNKNOWN, Code.UNCHECKED, ())
    assert "rank 1  left a record that ends after all_reduce #2" in finding.body
    note = "the record of rank 1 is cut short; the part before that was read: rank 1 after all_reduce #2"
    assert note in diagnosis.notes


def test_what_stands_before_the_cut_counts():
    calls = [[call("broadcast", line=30) if rank == 1 else DONE, *[DONE] * 8, HUNG] for rank in range(3)]
    [finding] = diagnosis_of(job(calls), cut=1).findings
    assert (finding.code, finding.ranks) == (Code.MISMATCH_OPERATION, (1,))
