"""Records that are damaged in every way: one line, or a diagnosis. Never a traceback of another kind."""

import json
import pickle
import random
import struct

import pytest

from ddpsim.simulator.records.as_clog import make_clog
from ddpsim.simulator.records.job import combine_records
from ddpsim.simulator.records.rank_record import RecordError
from ddpsim.simulator.records.record_diagnosis import diagnose_job, make_trace
from ddpsim.simulator.records.run_log import NotedCall, RunLog
from tests.records.dumps import as_json, call, job, pickled

from .dumps import read

ODD = (
    None,
    -1,
    0,
    2**31,
    2**63,
    -(2**70),
    1.5,
    float("nan"),
    "",
    "0",
    "nccl:",
    "\ud800",
    [],
    {},
    [[]],
    [None],
    b"x",
    True,
)
SEEDS = [*range(20), *(pytest.param(seed, marks=pytest.mark.tier("nightly")) for seed in range(20, 1000))]
PER_SEED = 10


def base(draw):
    """A job with collectives in two groups and messages, in a form that is drawn."""
    hung = draw.choice([call(state="started"), call("broadcast"), call(size=(7,))])
    own = [
        [call(), call(group="1"), call("send", to=1), hung],
        [call(), call(group="1"), call("recv", to=0)],
        [call(), call("reduce_scatter"), hung],
    ]
    dumps = job(own, {"1": (0, 1)})
    form = draw.choice(["pickle", "json", "clog"])
    if form == "clog":
        return [log(rank) for rank in dumps]
    damaged = [damage_value(each, draw) if draw.random() < 0.5 else each for each in dumps.values()]
    return [write(each, form) for each in damaged]


def log(rank):
    from ddpsim.simulator.calls import NOWHERE, Call, Signature

    signature = Signature("all_reduce", ((8,),), "float32", "SUM")
    split = Signature("all_to_all_single", ((3,), (3,)), "int64", splits=((1, 1, 1), (1, 1, 1)))
    calls = [Call(rank, "default", number, each, NOWHERE) for number, each in enumerate((signature, split))]
    noted = tuple(NotedCall(each, number == 0, 0.5) for number, each in enumerate(calls))
    return make_clog(RunLog(3, (noted,) * 3, {"default": (0, 1, 2)}), rank)


def write(value, form):
    if form == "pickle":
        return pickle.dumps(value, 4)
    try:
        return as_json(value)
    except (TypeError, KeyError, ValueError, AttributeError):
        return json.dumps(value, default=str).encode(errors="replace")


def damage_value(value, draw):
    """The same with a value of it replaced, removed or moved."""
    value = pickle.loads(pickled(value))
    place = value
    for _ in range(draw.randint(0, 4)):
        inner = [
            each for each in (place.values() if isinstance(place, dict) else place) if isinstance(each, (dict, list))
        ]
        if not inner:
            break
        place = draw.choice(inner)
    keys = list(place) if isinstance(place, dict) else list(range(len(place)))
    if not keys:
        return value
    key = draw.choice(keys)
    if draw.random() < 0.2:
        del place[key]
    else:
        place[key] = draw.choice([*ODD, place[draw.choice(keys)]])
    return value


def damage_bytes(data, draw):
    data = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        kind, at = draw.randrange(5), draw.randrange(len(data) or 1)
        if kind == 0:
            del data[at:]
        elif kind == 1 and data:
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 2:
            data[at:at] = bytes(draw.randrange(256) for _ in range(draw.randint(1, 9)))
        elif kind == 3:
            del data[at : at + draw.randint(1, 20)]
        else:
            data[at:at] = b"r" + struct.pack("<I", draw.randrange(2**32))
    return bytes(data)


def one_line(function, *arguments):
    """What it returns, and what it refuses with."""
    try:
        return function(*arguments), ""
    except RecordError as error:
        return None, str(error)


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_records_are_one_line_or_a_diagnosis(seed):
    draw = random.Random(seed)
    for _ in range(PER_SEED):
        pieces = base(draw)
        damaged = [damage_bytes(each, draw) if draw.random() < 0.6 else each for each in pieces]
        names = [f"rank_{rank}" for rank in range(3)]
        if draw.random() < 0.2:
            draw.shuffle(names)
        records = []
        for data, name in zip(damaged, names, strict=True):
            record, refusal = one_line(read, data, name)
            assert refusal.isprintable()
            records += [] if record is None else [record]
        found, refusal = one_line(combine_records, records, draw.choice([None, None, 3, 5]))
        assert refusal.isprintable()
        if found is None:
            continue
        diagnosis = diagnose_job(found)
        for finding in diagnosis.findings:
            assert str(finding)
        make_trace(diagnosis)
