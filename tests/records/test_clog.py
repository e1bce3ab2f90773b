"""torchcomms' text log."""

import pytest

from ddpsim import Code
from ddpsim.simulator.calls import Signature
from ddpsim.simulator.records.job import combine_records
from ddpsim.simulator.records.rank_record import CallProgress, RecordError
from ddpsim.simulator.records.record_diagnosis import diagnose_job
from tests.kit.rows import rows

from .dumps import read

HEAD = "V|1|base_timestamp=1714234567.890\nnew_comm|comm=world|rank={}|world_size={}\n"
SUM = "C1|sig|all_reduce|in_count=8|out_count=8|dtype=f32|red_op=sum|async_op=f|comm=world\n"


def log(rank, text, size=3):
    return (HEAD.format(rank, size) + text).encode()


def of(text, **options):
    return read(log(1, text, **options), "any name")


def found(*texts):
    return diagnose_job(combine_records([read(log(rank, text, len(texts)), "log") for rank, text in enumerate(texts)]))


def calls(count, ended, number=1):
    queued = "".join(f"C{number}|Q|work_id={each}|+0.00{each}\n" for each in range(count))
    return queued + f"C{number}|S|+0.1\nC{number}|E|+0.2\nC{number}|W|+0.2\n" * ended


def test_a_log_becomes_calls():
    record = of(SUM + calls(2, 1))
    assert (record.rank, record.form, record.members) == (1, "clog 1", {"world": (0, 1, 2)})
    assert [each.progress for each in record.calls] == [CallProgress.COMPLETE, CallProgress.UNFINISHED]
    assert record.calls[1].call.signature == Signature("all_reduce", ((8,),), "float32", "SUM")
    assert record.calls[1].call.sequence == 1
    assert record.lacks == ()


def test_roots_and_peers_are_global_and_splits_are_there():
    text = (
        "split|parent=world|child=pair|ranks=1,2\n"
        "C1|sig|broadcast|in_count=4|out_count=4|dtype=i64|root=1|async_op=f|comm=pair\n"
        "C2|sig|send|in_count=2|out_count=0|dtype=bf16|peer=0|async_op=t|comm=world\n"
        "C3|sig|all_to_all_v_single|in_splits=1,2,3|out_splits=2,2,2|dtype=f64|async_op=f|comm=world\n"
        "C1|Q|work_id=1|+0.1\nC2|Q|work_id=2|+0.1\nG4|C3|Q|work_id=3|+0.2\nG4|R1|C3|S|+0.3\nWARN|odd\n"
    )
    broadcast, send, exchange = (each.call for each in of(text).calls)
    assert broadcast.signature == Signature("broadcast", ((4,),), "int64", root=2)
    assert (send.signature, send.peer) == (Signature("send", ((2,),), "bfloat16"), 0)
    expected = Signature("all_to_all_single", ((6,), (6,)), "float64", splits=((1, 2, 3), (2, 2, 2)))
    assert exchange.signature == expected


def test_reductions_and_roots_that_differ_are_found():
    most = SUM.replace("sum", "max")
    finding = found(*[SUM + calls(1, 0)] * 2, most + calls(1, 0)).findings[0]
    assert (finding.code, finding.ranks) == (Code.MISMATCH_REDUCTION, (2,))
    longer = SUM.replace("count=8", "count=9")
    cause = found(*[SUM + calls(1, 0)] * 2, longer + calls(1, 0)).findings[0].labelled[0]
    assert cause.text.startswith("rank 2 passed a different shape to the same call, or made another call")
    root = "C1|sig|broadcast|in_count=4|out_count=4|dtype=i64|root={}|async_op=f|comm=world\n"
    texts = [root.format(0) + calls(1, 0), root.format(1) + calls(1, 0), root.format(0) + calls(1, 0)]
    finding = found(*texts).findings[0]
    assert (finding.code, finding.ranks) == (Code.MISMATCH_ROOT, (1,))


def test_a_rank_that_did_not_come_is_found():
    diagnosis = found(SUM + calls(3, 2), SUM + calls(2, 2), SUM + calls(3, 2))
    assert (diagnosis.findings[0].code, diagnosis.findings[0].ranks) == (Code.DEADLOCK_MISSING_RANK, (1,))
    assert "counts" not in diagnosis.findings[0].body  # it knows no lines that could have been called
    assert diagnosis.notes == ()


def test_a_last_line_that_is_cut_is_left_out():
    whole = log(1, SUM + calls(2, 1))
    assert read(whole[:-6], "log").calls[0].progress is CallProgress.COMPLETE
    for length in range(60, len(whole)):
        read(whole[:length], "rank_1")


@rows(
    ("text", "message"),
    [
        (
            "C9|Q|work_id=1|+0.1\nC9|S|+0.1\n",
            r"a clog \(torchcomms' call log\) whose line 3 is 'C9\|Q\|work_id=1\|\+0.1'",
        ),
        ("X|1\n", r"a clog \(torchcomms' call log\) whose line 3"),
        ("C1|sig|all_reduce|in_count\n", r"a clog \(torchcomms' call log\) whose line 3"),
        ("C1|sig|all_reduce|in_count=2\n", r"a clog \(torchcomms' call log\) whose line 3"),
    ],
)
def test_other_lines_are_refused(text, message):
    with pytest.raises(RecordError, match=message):
        of(text)


def test_another_version_is_refused():
    with pytest.raises(RecordError, match=r"a clog \(torchcomms' call log\) of version '2', expected 1: update ddpsim"):
        read(b"V|2|base_timestamp=1\n", "rank_0")
