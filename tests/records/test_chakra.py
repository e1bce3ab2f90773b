"""Chakra execution traces of simulated runs: what the nodes say, and that mlcommons' own package reads the files."""

import importlib.util
import json
import sys

import pytest
import torch
import torch.distributed as dist

from ddpsim import UsageError, simulate
from ddpsim.scenarios.cli import main
from ddpsim.scenarios.records import chakra
from ddpsim.scenarios.records.chakra import COLLECTIVES, bytes_of_element, chakra_nodes_of
from ddpsim.scenarios.records.writing import RecordFolders, write_records
from ddpsim.simulator.operations import CREATING, OPERATIONS
from ddpsim.simulator.records.run_log import make_run_log
from tests.kit.rows import rows

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("chakra") is None, reason="mlc-chakra not installed: pip install 'ddpsim[chakra]'"
)


def program(rank):
    odd = dist.new_group([1, 2])
    dist.all_reduce(torch.ones(3, 2))
    if rank in (1, 2):
        dist.broadcast(torch.ones(5, dtype=torch.float64), src=2, group=odd)
    if rank == 0:
        dist.send(torch.ones(4, dtype=torch.bfloat16), dst=2, tag=7)
    if rank == 2:
        dist.recv(torch.ones(4, dtype=torch.bfloat16), tag=7)
    dist.barrier()


@pytest.fixture(scope="module")
def result():
    result = simulate(program, 3)
    result.raise_for_verdict()
    return result


def test_nodes(result):
    noted = make_run_log(result.trace, 3)
    told = [
        [
            (each.type, each.collective, each.size, each.members, each.after, each.root, each.peer, each.tag)
            for each in at
        ]
        for at in (chakra_nodes_of(noted, rank) for rank in range(3))
    ]
    everyone = (0, 1, 2)
    first = ("COMM_COLL_NODE", "ALL_REDUCE", 24, everyone, (), None, None, None)
    on_two = ("COMM_COLL_NODE", "BROADCAST", 40, (1, 2), (), 2, None, None)
    assert told == [
        [
            first,
            ("COMM_SEND_NODE", None, 8, everyone, (0,), None, 2, 7),
            ("COMM_COLL_NODE", "BARRIER", 0, everyone, (1,), None, None, None),
        ],
        [first, on_two, ("COMM_COLL_NODE", "BARRIER", 0, everyone, (0,), None, None, None)],
        [
            first,
            on_two,
            ("COMM_RECV_NODE", None, 8, everyone, (0,), None, 0, 7),  # from any source: it took rank 0's
            ("COMM_COLL_NODE", "BARRIER", 0, everyone, (2,), None, None, None),
        ],
    ]


def test_every_collective_has_a_type():
    assert {name for name in OPERATIONS if name not in (*CREATING, "send", "recv")} == set(COLLECTIVES)


@rows("dtype", ["float32", "float64", "bfloat16", "float8_e4m3fn", "int8", "bool", "complex64"])
def test_bytes_of_an_element(dtype):
    assert bytes_of_element(dtype) == torch.empty(0, dtype=getattr(torch, dtype)).element_size()


def test_without_the_package_it_is_one_line_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "chakra", None)
    assert main(["run", "send-send", "--chakra", str(tmp_path / "traces")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("ddpsim: --chakra needs mlcommons' package (")
    assert said.endswith("install it: pip install 'ddpsim[chakra]'\n")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="--chakra needs"):
        chakra.check_chakra_is_installed()


@needs_package
def test_the_package_reads_the_files(result, tmp_path, monkeypatch):
    from chakra.src.jsonizer import jsonizer

    write_records(result, RecordFolders(chakra=tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chakra.0.et", "chakra.1.et", "chakra.2.et"]
    monkeypatch.setattr(
        "sys.argv",
        ["x", "--input_filename", str(tmp_path / "chakra.0.et"), "--output_filename", str(tmp_path / "0.json")],
    )
    jsonizer.main()
    metadata, *nodes = _objects((tmp_path / "0.json").read_text())
    assert metadata == {"version": "1.0.0"}
    assert [(node["name"].split()[0], node["type"], node.get("ctrlDeps", [])) for node in nodes] == [
        ("all_reduce", "COMM_COLL_NODE", []),
        ("send", "COMM_SEND_NODE", ["0"]),
        ("barrier", "COMM_COLL_NODE", ["1"]),
    ]
    send = {each["name"]: each for each in nodes[1]["attr"]}
    assert send["comm_dst"]["int32Val"] == 2
    assert send["comm_tag"]["int32Val"] == 7
    assert send["comm_size"]["int64Val"] == "8"


def _objects(text):
    """The objects of JSON that stand one after another."""
    decoder, at, found = json.JSONDecoder(), 0, []
    while at < len(text):
        one, at = decoder.raw_decode(text, at)
        found.append(one)
    return found
