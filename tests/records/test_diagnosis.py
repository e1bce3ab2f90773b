"""What the records of a job come to."""

from ddpsim import Code, Verdict
from ddpsim.simulator.records import flight_recorder
from ddpsim.simulator.records.job import combine_records
from ddpsim.simulator.records.record_diagnosis import diagnose_job, make_trace
from ddpsim.simulator.records.record_texts import printable_text
from tests.kit.rows import rows
from tests.records.dumps import call, dump, job

DONE = call()
HUNG = call(line=21, state="started")


def found(dumps, world_size=None):
    records = [flight_recorder.read_dump(each, f"rank_{rank}") for rank, each in dumps.items()]
    return diagnose_job(combine_records(records, world_size))


def only(diagnosis):
    [finding] = diagnosis.findings
    return finding


def test_records_of_a_job_that_was_right_have_no_findings():
    diagnosis = found(job([[DONE, DONE]] * 3))
    assert (diagnosis.findings, diagnosis.verdict, diagnosis.compared) == ((), Verdict.PASS, 2)
    assert diagnosis.notes == ("not in the records, so not compared: reduction, root, splits",)


def test_a_rank_that_did_not_come_is_found():
    finding = only(found(job([[DONE, HUNG], [DONE, HUNG], [DONE], [DONE, HUNG]])))
    assert (finding.code, finding.ranks) == (Code.DEADLOCK_MISSING_RANK, (2,))
    assert finding.body.splitlines()[:5] == [
        "DEADLOCK  deadlock.missing_rank",
        '  rank 0  waits in all_reduce #1  float32[11]  group "default"  train.py:21  arrived 0, 1, 3 · missing 2',
        '  rank 1  waits in all_reduce #1  float32[11]  group "default"  train.py:21  arrived 0, 1, 3 · missing 2',
        "  rank 2  made no call after all_reduce #0                      train.py:20",
        '  rank 3  waits in all_reduce #1  float32[11]  group "default"  train.py:21  arrived 0, 1, 3 · missing 2',
    ]
    assert finding.summary == "ranks 0, 1, 3 wait for rank 2, which did not arrive"


@rows(
    ("other", "code"),
    [
        (call("broadcast", line=30), Code.MISMATCH_OPERATION),
        (call(size=(12,), line=30), Code.MISMATCH_SHAPE),
        (call(dtype="float64", line=30), Code.MISMATCH_DTYPE),
    ],
)
@rows("odd", range(4))
def test_the_rank_whose_call_is_another_is_to_blame_wherever_it_stands(other, code, odd):
    finding = only(found(job([[DONE, other if rank == odd else DONE, HUNG] for rank in range(4)])))
    assert (finding.code, finding.ranks) == (code, (odd,))
    assert str(finding.sites[0]) == "train.py:30"


def test_the_first_of_two_mismatches_is_told():
    early, late = call("broadcast", group="1"), call(size=(3,), line=40)
    dumps = job([[call(group="1"), DONE], [early, late], [DONE]], {"1": (0, 1)})
    assert only(found(dumps)).calls[0].group == "1"


def test_groups_in_opposite_order_are_a_cycle():
    tensor, data = call(group="1", state="started", line=5), call(group="2", state="started", line=6)
    diagnosis = found(job([[tensor], [data]], {"1": (0, 1), "2": (0, 1)}))
    finding = only(diagnosis)
    assert (finding.code, finding.ranks) == (Code.DEADLOCK_CYCLE, (0, 1))
    assert not any("which calls were complete" in note for note in diagnosis.notes)  # they say that none is


def test_calls_through_a_helper_are_told_by_the_file_that_calls_it():
    def through(group, line):
        files = ("/site-packages/torch/c10d.py", 7), ("/a/helper.py", 4), ("/a/helper.py", 9), ("<string>", 1)
        stack = *files, ("/a/train.py", line), ("/a/main.py", 1)
        frames = [{"name": "step", "filename": file, "line": number} for file, number in stack]
        return call(group=group, state="started", frames=frames)

    finding = only(found(job([[through("1", 15)], [through("2", 18)]], {"1": (0, 1), "2": (0, 1)})))
    assert 'group "1"  helper.py:4 from train.py:15' in finding.body
    assert [str(site) for site in finding.sites] == ["helper.py:4", "train.py:15", "train.py:18"]


def test_groups_in_opposite_order_are_a_cycle_also_where_all_calls_were_issued():
    tensor, data = call(group="1", state="scheduled", line=5), call(group="2", state="scheduled", line=6)
    finding = only(found(job([[tensor, data], [data, tensor]], {"1": (0, 1), "2": (0, 1)})))
    assert (finding.code, finding.ranks) == (Code.DEADLOCK_CYCLE, (0, 1))
    in_order = found(job([[tensor, data], [tensor, data]], {"1": (0, 1), "2": (0, 1)}))
    assert {finding.code for finding in in_order.findings} == {Code.UNCHECKED}


def test_a_call_that_all_came_to_and_that_does_not_complete_is_unknown():
    diagnosis = found(job([[DONE, HUNG, HUNG]] * 2))
    assert diagnosis.verdict is Verdict.UNKNOWN
    assert only(diagnosis).summary == 'ranks 0, 1 reached all_reduce #1 on "default", and it did not complete'


def test_all_send_first_is_a_cycle():
    sends = [[call("send", to=(rank + 1) % 3, state="started")] for rank in range(3)]
    finding = only(found(job(sends)))
    assert (finding.code, finding.cycle) == (Code.DEADLOCK_CYCLE, (0, 1, 2))


def test_a_batch_of_messages_is_messages():
    together = {"p2p_seq_id": 1}
    end = call("coalesced", None, is_p2p=True, collective_seq_id=0, **together)
    batch = [[call(name, to=1 - rank, **together) for name in ("send", "recv")] + [end, DONE] for rank in range(2)]
    diagnosis = found({rank: renumbered(each) for rank, each in job(batch).items()})
    assert (diagnosis.findings, diagnosis.compared) == ((), 1)


def renumbered(dump):
    dump["entries"][-1]["collective_seq_id"] = 1
    return dump


def test_a_coalesced_collective_is_one_call():
    def batch(size):
        inner = [call("_all_gather_base", (n,), collective_seq_id=1) for n in (3, size)]
        return [*inner, call("coalesced", None, collective_seq_id=1)]

    assert found(job([batch(4), batch(4)])).findings == ()
    finding = only(found(job([batch(4), batch(4), batch(5)])))
    assert (finding.code, finding.ranks) == (Code.MISMATCH_SHAPE, (2,))
    assert "all_gather_into_tensor_coalesced #0  float32[3], [5]" in finding.body


def test_a_ring_that_lost_its_beginning_is_compared_from_there_on():
    members = {"0": (0, 1, 2)}
    calls = [DONE] * 9
    dumps = {
        0: dump(0, [*calls, HUNG], members, lost=6),
        1: dump(1, [*calls, HUNG], members),
        2: dump(2, calls, members, lost=4),
    }
    diagnosis = found(dumps)
    assert (only(diagnosis).ranks, diagnosis.compared) == ((2,), 4)
    assert "made no call after all_reduce #8" in only(diagnosis).body
    text = 'group "default" is compared from call #6: earlier calls are not in all records'
    assert text in diagnosis.notes


def test_where_only_a_rank_without_a_record_can_be_missing_nobody_knows():
    dumps = job([[DONE, call(state="started")]] * 4)
    del dumps[2]
    diagnosis = found(dumps)
    finding = only(diagnosis)
    assert (diagnosis.verdict, finding.code, finding.ranks) == (Verdict.UNKNOWN, Code.UNCHECKED, ())
    assert finding.body.splitlines()[0] == "UNKNOWN  unchecked"
    assert "rank 2  left no record" in finding.body
    assert "0 times" not in finding.body
    assert finding.summary == "ranks 0, 1, 3 wait for rank 2, and no record shows whether it arrived"
    assert diagnosis.notes[0] == "no record of rank 2"


def test_nobody_knows_of_a_record_that_was_written_earlier_either():
    diagnosis = found(job([[DONE], [DONE, DONE, HUNG], [DONE, DONE, HUNG]]))
    finding = only(diagnosis)
    assert (finding.code, finding.ranks) == (Code.UNCHECKED, ())
    assert "rank 0  left a record that ends after all_reduce #0" in finding.body


def test_a_message_to_a_rank_without_a_record_is_unknown_too():
    dumps = job([[DONE, call("send", to=1, state="started")], [DONE], [DONE]])
    del dumps[1]
    assert [(finding.code, finding.ranks) for finding in found(dumps).findings] == [(Code.UNCHECKED, ())]


def test_a_rank_without_a_record_is_not_blamed_if_another_one_is_missing():
    dumps = job([[DONE, HUNG], [DONE], [DONE, HUNG], [DONE, HUNG]])
    del dumps[3]
    assert only(found(dumps)).ranks == (1,)


def test_nothing_open_and_a_rank_without_a_record_is_unknown():
    dumps = job([[DONE]] * 3)
    del dumps[0]
    diagnosis = found(dumps)
    assert (diagnosis.verdict, only(diagnosis).code) == (Verdict.UNKNOWN, Code.UNCHECKED)


def test_a_record_that_was_written_earlier_is_not_blamed():
    diagnosis = found(job([[], [DONE, DONE], [DONE, DONE, HUNG], [DONE, DONE, HUNG]]))
    assert only(diagnosis).ranks == (1,)
    assert diagnosis.notes[0] == (
        "the record of rank 0 lacks calls that others completed with it: it was written earlier"
    )


def test_what_was_retired_and_has_a_later_call_behind_it_was_complete():
    retired = call(state="scheduled", retired=True)
    diagnosis = found(job([[retired, retired, retired], [retired, retired, retired], [retired, retired]]))
    assert only(diagnosis).ranks == (2,)
    assert "rank 0  waits in all_reduce #2" in only(diagnosis).body


def test_clocks_are_not_asked():
    dumps = job([[DONE, HUNG], [DONE, HUNG], [DONE]])
    for number, each in enumerate(dumps.values()):
        for entry in each["entries"]:
            entry["time_created_ns"] -= number * 10**15
    assert only(found(dumps)).ranks == (2,)


def test_numbers_that_begin_anew_are_another_group_of_the_same_name():
    old = [call(size=(rank + 1,)) for rank in range(2)]
    dumps = job([[old[rank], DONE, DONE] for rank in range(2)])
    for each in dumps.values():
        for number, entry in enumerate(each["entries"][1:], start=1):
            entry["collective_seq_id"] = number
    assert found(dumps).findings == ()


def test_groups_of_gloo_in_opposite_order_are_a_cycle_though_no_record_says_who_is_in_them():
    """As torch 2.13 leaves it: ranks 2 and 3, which are in one group only, have its members."""
    state = {"state": "scheduled", "retired": False}
    pair, loss = call(group="1", line=5, **state), call(line=6, **state)
    dumps = job([[pair], [loss], [loss], [loss]], {"1": (0, 1)})
    for rank, each in dumps.items():
        each["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[]" if rank < 2 else "[0, 1, 2, 3]"}}
    finding = only(found(dumps))
    assert (finding.code, finding.ranks, finding.cycle) == (Code.DEADLOCK_CYCLE, (0, 1), (0, 1))


def test_gloo_says_neither_members_nor_messages():
    dumps = job([[DONE, HUNG], [DONE, HUNG], [DONE]])
    for each in dumps.values():
        each["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[]"}}
        for entry in each["entries"]:
            entry |= {"profiling_name": "gloo:all_reduce", "state": "scheduled", "retired": True}
            entry["op_id"] *= 3
    diagnosis = found(dumps)
    assert only(diagnosis).ranks == (2,)
    assert diagnosis.notes[-1] == (
        "4 calls of ranks 0, 1 are not in the records (gloo's have no send and no recv), and a rank may wait in one"
    )


def test_the_trace_has_the_last_calls_in_a_possible_order_and_who_waits():
    diagnosis = found(job([[DONE, DONE, HUNG], [DONE, DONE]]))
    told = [(event.kind.name, event.rank, event.choice_points) for event in make_trace(diagnosis)]
    first, second = ([("ISSUE", 0, n), ("ISSUE", 1, n + 1), ("MATCH", 1, n + 1)] for n in (0, 2))
    assert told == [*first, *second, ("ISSUE", 0, 4), ("WAIT", 0, 7)]


def test_a_terminal_is_not_told_to_do_anything_and_a_long_text_is_cut():
    assert printable_text("train\x1b[2J") == "train?[2J"
    assert printable_text("a" * 400) == "a" * 297 + "..."
