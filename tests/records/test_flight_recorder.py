"""Dumps of torch's flight recorder."""

import copy
import json

import pytest

from ddpsim.simulator.calls import Signature, Site
from ddpsim.simulator.records import flight_recorder
from ddpsim.simulator.records.rank_record import CallProgress, RecordError
from tests.kit.rows import rows
from tests.records.dumps import as_json, call, dump, job, pickled

from .dumps import read

WORLD = {"0": (0, 1, 2, 3), "5": (1, 3)}


def of(*calls, rank=1, **options):
    return flight_recorder.read_dump(dump(rank, calls, WORLD, **options), f"rank_{rank}")


def signatures(*calls):
    return [each.call.signature for each in of(*calls).calls]


def test_a_dump_becomes_calls():
    record = of(call(), call(size=(2, 3), dtype="int64", group="5", state="started", line=9))
    assert (record.rank, record.form, record.lost) == (1, "flight recorder 2.10", 0)
    assert record.members == {"default": (0, 1, 2, 3), "5": (1, 3)}
    first, second = record.calls
    assert (first.call.group, first.call.sequence, first.progress) == ("default", 0, CallProgress.COMPLETE)
    assert first.call.signature == Signature("all_reduce", ((11,),), "float32")
    assert (second.call.group, second.call.sequence, second.progress) == ("5", 0, CallProgress.UNFINISHED)
    assert second.call.site == Site("/job/train.py", 9, "train")


def test_json_says_the_same_without_stacks():
    value = dump(2, [call(), call(group="0", state="scheduled")], WORLD)
    from_pickle, from_json = read(pickled(value), "rank_2"), read(as_json(value), "rank_2")
    without = [each._replace(call=each.call._replace(site=from_json.calls[0].call.site)) for each in from_pickle.calls]
    assert list(from_json.calls) == without
    assert from_json.calls[0].call.location == ""


@rows("version", ["2.0", "2.4", "2.5", "2.7", "2.9", "2.10", "2.11"])
def test_every_version_is_read_by_what_it_has(version):
    value = dump(1, [call()], WORLD, version=version)
    for name in ("is_p2p", "timeout_ms", "p2p_seq_id", "op_id", "retired"):  # later versions have brought them
        del value["entries"][0][name]
    value["pg_config"]["0"]["a field of tomorrow"] = [1]
    assert flight_recorder.read_dump(value, "rank_1").form == f"flight recorder {version}"


@rows("version", [None, 2, "2.x", ""])
def test_what_is_no_version_is_refused(version):
    with pytest.raises(RecordError, match=r"of version .*, expected 2\.0 or a later one"):
        of(call(), version=version)


@pytest.mark.parametrize("version", ["3.1", "1.9"])
def test_a_version_that_is_not_known_is_read_as_far_as_it_is_like_the_known_one(version):
    record = of(call(), version=version)
    assert (record.is_known, record.form, len(record.calls)) == (False, f"flight recorder {version}", 1)
    message = (
        rf"a dump of the unknown version {version}, which differs from 2\.10: a flight recorder's dump that is dam"
    )
    with pytest.raises(RecordError, match=message):
        of(call(record_id="one"), version=version)


@rows(
    ("name", "operation"),
    [
        ("_all_gather_base", "all_gather_into_tensor"),
        ("_reduce_scatter_base", "reduce_scatter_tensor"),
        ("_broadcast_oop", "broadcast"),
        ("all_reduce_barrier", "barrier"),
        ("something_new", "something_new"),
    ],
)
def test_operations_have_torch_distributeds_names(name, operation):
    assert [each.operation for each in signatures(call(name))] == [operation]


def test_a_scatter_is_compared_by_what_every_rank_receives():
    root = call("scatter", input_sizes=[[4, 2]], output_sizes=[[2]])
    other = call("scatter", input_sizes=[], input_dtypes=[], output_sizes=[[2]])
    assert signatures(root) == signatures(other) == [Signature("scatter", ((2,),), "float32")]


def test_messages_name_global_ranks():
    send, receive = of(call("send", to=3, group="5"), call("recv", to=0), rank=1).calls
    assert (send.call.peer, receive.call.peer) == (3, 0)


@rows(
    ("name", "rank"),
    [
        ("rank_3", 3),
        ("nccl_trace_rank_3", 3),
        ("host7-rank12.pickle", 12),
        ("job5/rank=4.json", 4),
        ("dump.0007", 7),
        ("trace_2.pkl", 2),
    ],
)
def test_the_name_says_the_rank_where_the_content_does_not(name, rank):
    assert flight_recorder.read_dump(dump(0, [call()], {"0": tuple(range(20))}), name).rank == rank


def test_the_content_says_the_rank_where_it_can_and_one_that_nothing_says_is_asked_for():
    messages = dump(2, [call("send", to=0)], WORLD)
    assert flight_recorder.read_dump(messages, "rank_0").rank == 2
    communicators = dump(0, [call()], WORLD) | {
        "nccl_comm_state": {"a": {"rank": "1", "nranks": "2"}, "b": {"rank": "3", "nranks": "4"}}
    }
    assert flight_recorder.read_dump(communicators, "dump").rank == 3
    with pytest.raises(RecordError, match='rename the file to end in the rank, such as "rank_3"'):
        flight_recorder.read_dump(dump(0, [call()], WORLD), "dump.pickle")


def test_what_gloo_calls_retired_may_have_timed_out():
    retired = of(call(state="scheduled", retired=True)).calls[0]
    assert retired.progress is CallProgress.UNKNOWN


def test_a_ring_says_how_many_calls_it_lost():
    record = of(*[call()] * 9, lost=4)
    assert (record.lost, [each.call.sequence for each in record.calls]) == (4, [4, 5, 6, 7, 8])


def test_the_line_is_the_users():
    def site(*frames):
        entry = call(frames=[{"name": "f", "filename": name, "line": 3} for name in frames])
        return of(entry).calls[0].call.site.path

    torch, lib = "/env/lib/python3.11/site-packages/torch/nn.py", "/env/lib/python3.11/site-packages/lightning/fit.py"
    assert site(torch, lib, "/job/train.py", "/job/main.py") == "/job/train.py"
    assert site(torch, lib) == lib
    assert site(torch) == ""
    assert of(call(frames=[None, 3, {"name": 1}])).calls[0].call.location == ""


DAMAGES = {
    "entries are no list": lambda d: d.update(entries=7),
    "an entry is a number": lambda d: d["entries"].append(3),
    "sizes are texts": lambda d: d["entries"][0].update(input_sizes=[["a"]]),
    "sizes are no lists": lambda d: d["entries"][0].update(input_sizes=5),
    "an operation is None": lambda d: d["entries"][0].update(profiling_name=None),
    "an id is a text": lambda d: d["entries"][0].update(record_id="x"),
    "members are code": lambda d: d["pg_config"]["0"].update(ranks="__import__('os')"),
    "members are none": lambda d: d["pg_config"]["0"].update(ranks="[,]"),
    "groups are a list": lambda d: d.update(pg_config=[1]),
}


@rows("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_one_line(damage):
    value = copy.deepcopy(job([[call()]])[0])
    damage(value)
    for data in (pickled(value), json.dumps(value).encode()):
        with pytest.raises(RecordError) as error:
            read(data, "rank_0")
        assert "\n" not in str(error.value)
