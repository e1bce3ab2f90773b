"""Records of jobs that never were, in the forms that real ones leave, written from a table of calls."""

import json
import pickle
from collections import Counter

from ddpsim.simulator.records.record_forms import JobReader

CPP = {"float32": "Float", "float64": "Double", "int64": "Long"}


def read(data, source):
    """The record in a file, read without other ones."""
    return JobReader().read_record(data, source)


def call(
    operation="all_reduce", size=(11,), *, group="0", dtype="float32", line=20, state="completed", to=None, **fields
):
    """One entry to be; `to` is the other rank of a message, as a global rank."""
    return {"operation": operation, "size": size, "group": group, "dtype": dtype, "line": line, "state": state} | {
        "to": to,
        "fields": fields,
    }


def job(calls, groups=None):
    """What each rank's dump holds, by rank: NCCL's shape. `groups` are members by name, the default group's is "0"."""
    members = {"0": tuple(range(len(calls))), **(groups or {})}
    return {rank: dump(rank, own, members) for rank, own in enumerate(calls)}


def dump(rank, calls, members, *, version="2.10", lost=0):
    counts = Counter()
    entries = []
    for number, each in enumerate(calls):
        is_message = each["to"] is not None
        counts[each["group"], is_message] += 1
        counts[each["group"], "op"] += 1
        entries.append(_entry(rank, number, each, members, counts))
    return {
        "version": version,
        "pg_config": {
            name: {"name": name, "desc": "default_pg" if name == "0" else "undefined", "ranks": str(list(ranks))}
            for name, ranks in members.items()
            if rank in ranks
        },
        "pg_status": {},
        "entries": entries[lost:],
    }


def _entry(rank, number, each, members, counts):
    group, is_message = each["group"], each["to"] is not None
    name = each["operation"]
    if is_message:
        own, other = members[group].index(rank), members[group].index(each["to"])
        name += f" {own}{'->' if name == 'send' else '<-'}{other}"
    sizes, dtypes = ([list(each["size"])], [CPP[each["dtype"]]]) if each["size"] is not None else ([], [])
    return {
        "record_id": number,
        "pg_id": int(group),
        "process_group": (group, "default_pg" if group == "0" else "undefined"),
        "collective_seq_id": counts[group, False],
        "p2p_seq_id": counts[group, True],
        "op_id": counts[group, "op"],
        "profiling_name": f"nccl:{name}",
        "time_created_ns": 10**18 + number,
        "input_sizes": sizes,
        "input_dtypes": dtypes,
        "output_sizes": sizes,
        "output_dtypes": dtypes,
        "state": each["state"],
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": each["state"] == "completed",
        "timeout_ms": 600000,
        "is_p2p": is_message,
        "frames": [
            {"name": "all_reduce", "filename": "/venv/site-packages/torch/distributed/c10d.py", "line": 7},
            {"name": "train", "filename": "/job/train.py", "line": each["line"]},
        ],
    } | each["fields"]


def pickled(value):
    """As torch pickles a dump."""
    return pickle.dumps(value, protocol=2)


def written(folder, dumps, name="rank_{}", form=pickled):
    """Write a folder of dumps."""
    folder.mkdir(exist_ok=True)
    for rank, each in dumps.items():
        (folder / name.format(rank)).write_bytes(form(each))
    return folder


def as_json(value):
    """As torch writes a dump as JSON: without frames."""
    plain = {**value, "entries": [{k: v for k, v in each.items() if k != "frames"} for each in value["entries"]]}
    return json.dumps(plain).encode()
