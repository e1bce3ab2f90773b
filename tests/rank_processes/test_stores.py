"""Stores that a program makes by hand: torch's to look at, and the simulation's where somebody waits."""

import datetime
import os
import re

import pytest
import torch
import torch.distributed as dist
from torch.distributed import TCPStore

from ddpsim import Code, UsageError, Verdict, simulate, simulate_program
from ddpsim.scenarios.cli.commands import main


def seconds(number):
    return datetime.timedelta(seconds=number)


def run(program, world_size=2, **options):
    result = simulate(program, world_size, isolation="process", **options)
    if result.verdict is Verdict.PASS:
        return result.returns
    return result


def raised(function, *arguments, **options):
    try:
        return function(*arguments, **options)
    except Exception as error:
        return type(error).__name__, str(error)


def test_a_tcp_store_joins_the_ranks():
    def program(rank):
        store = TCPStore("localhost", 29611, 3, rank == 0, timeout=seconds(30))
        store.set(f"from {rank}", str(rank))
        store.wait([f"from {other}" for other in range(3)])
        total = store.add("total", rank)
        store.barrier("end", 3)
        return (
            b"".join(store.multi_get([f"from {other}" for other in range(3)])),
            total >= rank and store.add("total", 0),
            (store.host, store.port, store.timeout, isinstance(store, (dist.Store, dist.TCPStore))),
        )

    assert run(program, 3) == ((b"012", 3, ("localhost", 29611, seconds(30), True)),) * 3


def test_port_0_is_another_one_each_time():
    def program(rank):
        first, second = [dist.TCPStore("localhost", 0, is_master=True) for _ in range(2)]
        return first.port, second.port

    ports = [port for pair in run(program) for port in pair]
    assert sorted(ports) == [49152, 49153, 49154, 49155]


def test_a_port_has_one_server():
    def program(rank):
        if rank:
            dist.barrier()
        store = raised(dist.TCPStore, "localhost", 29612, None, is_master=True)
        if not rank:
            again = raised(dist.TCPStore, "localhost", 29612, None, is_master=True)
            store.set("old", "1")
            del store
            store = dist.TCPStore("localhost", 29612, None, is_master=True)
            dist.barrier()
            return again, store.check(["old"])
        return store

    line = (
        "The server socket has failed to listen on any local network address. port: 29612, useIpv6: false, "
        "code: -98, name: EADDRINUSE, message: address already in use"
    )
    error = ("DistNetworkError", line)
    assert run(program) == ((error, False), error)


def test_time_outs_pass_in_virtual_time():
    def program(rank):
        if rank:
            return None
        store = dist.TCPStore("localhost", 29613, None, True, seconds(5))
        return (
            raised(store.get, "x"),
            raised(store.wait, ["x"], seconds(1)),
            raised(dist.PrefixStore("p", store).get, "x"),
            raised(dist.TCPStore, "localhost", 29614, None, False, seconds(2)),
            raised(dist.TCPStore, "localhost", 29615, 2, True, seconds(2)),
        )

    assert run(program)[0] == (
        ("DistStoreError", "wait timeout after 5000ms, keys: /x"),
        ("DistStoreError", "wait timeout after 1000ms, keys: /x"),
        ("DistStoreError", "wait timeout after 5000ms, keys: /p/x"),
        (
            "DistNetworkError",
            "The client socket has timed out after 2000ms while trying to connect to (localhost, 29614).",
        ),
        ("DistStoreError", "Timed out after 3 seconds waiting for clients. 1/2 clients joined."),
    )


def test_a_server_waits_for_its_workers():
    def program(rank):
        if rank == 1:
            return
        dist.TCPStore("localhost", 29616, 3, rank == 0)

    result = run(program, 3)
    assert result.findings[0].code is Code.DEADLOCK_MISSING_RANK
    assert "rank 0  waits for store key 'all 3 clients of tcp port 29616'  test_stores.py" in result.findings[0].body


def test_a_key_that_nobody_sets_is_found_at_the_line():
    def program(rank):
        store = dist.PrefixStore("jobs", dist.TCPStore("localhost", 29617, 2, rank == 0))
        if rank == 0:
            store.set("done", b"1")
        store.get("done" if rank == 0 else "gone")

    result = run(program)
    assert result.verdict is Verdict.FAIL
    assert "rank 1  waits for store key 'tcp port 29617/jobs/gone'  test_stores.py" in result.findings[0].body


def test_a_prefix_store():
    def program(rank):
        store = dist.HashStore()
        outer = dist.PrefixStore("a", store)
        inner = dist.PrefixStore("b", outer)
        inner.set("key", "1")
        inner.queue_push("queue", "2")
        return (
            store.get("a/b/key"),
            store.list_keys(),
            inner.list_keys(),
            inner.num_keys(),
            inner.queue_len("queue"),
            inner.queue_pop("queue"),
            inner.underlying_store is outer,
            inner._underlying_non_prefix_store is store,
            isinstance(inner, dist.PrefixStore) and not isinstance(store, dist.PrefixStore),
        )

    assert run(program, 1) == ((b"1", ["a/b/key"], ["key"], 1, 1, b"2", True, True, True),)


def test_a_hash_store_is_of_its_process():
    def program(rank):
        store = dist.HashStore()
        other = dist.HashStore()
        store.set("key", str(rank))
        dist.barrier()
        return store.get("key"), store.num_keys(), other.num_keys()

    assert run(program) == ((b"0", 1, 0), (b"1", 1, 0))


def test_a_file_store(tmp_path):
    def program(rank):
        os.chdir(tmp_path)
        store = dist.FileStore("store" if rank else str(tmp_path / "store"), 2)
        store.set(str(rank), "here")
        there = store.get(str(1 - rank))
        return there, store.path, os.path.exists("store"), raised(dist.FileStore, "no/such/folder")[0]

    first, second = run(program)
    assert first == (b"here", str(tmp_path / "store"), True, "RuntimeError")
    assert second == (b"here", "store", True, "RuntimeError")


def test_a_process_forked_from_a_rank_has_torchs_own():
    def program(rank):
        reader, writer = os.pipe()
        if not os.fork():
            store = dist.TCPStore("localhost", 0, is_master=True)
            store.set("key", "forked")
            os.write(writer, store.get("key"))
            os._exit(0)
        os.wait()
        return os.read(reader, 100)

    assert run(program, 1) == (b"forked",)


# --- as the store of a group ------------------------------------------------------------------------------------------

IMPORTS = """
import os, sys, datetime, torch, torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
"""
A_GROUP = """{make}
total = torch.tensor([rank + 1.0], device=torch.device("cuda", rank) if dist.get_backend() == "nccl" else "cpu")
dist.all_reduce(total)
print(total.item(), dist.get_backend())
dist.destroy_process_group()
"""

WAYS = (
    ('dist.init_process_group("gloo")', "gloo"),
    ("dist.init_process_group()", "undefined"),
    ('dist.init_process_group("nccl")', "nccl"),
    ('dist.init_process_group("mpi")', "mpi"),
    ('dist.init_process_group("cpu:gloo,cuda:nccl")', "cpu:gloo,cuda:nccl"),
    ('dist.init_process_group("gloo", "tcp://127.0.0.1:29500", rank=rank, world_size=size)', "gloo"),
    ('dist.init_process_group("gloo", f"file://{os.getcwd()}/group", rank=rank, world_size=size)', "gloo"),
    (
        'store = dist.TCPStore("127.0.0.1", 29501, size, rank == 0)\n'
        'dist.init_process_group("gloo", store=store, rank=rank, world_size=size)',
        "gloo",
    ),
    (
        'dist.init_process_group("gloo", store=dist.FileStore("other", size), rank=rank, world_size=size)',
        "gloo",
    ),
    (
        'store, rank, size = next(dist.rendezvous("env://"))\n'
        'dist.init_process_group("gloo", store=dist.PrefixStore("own", store), rank=rank, world_size=size)',
        "gloo",
    ),
)


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(*ways):
        (tmp_path / "train.py").write_text(IMPORTS + "".join(A_GROUP.format(make=make) for make in ways))
        return ["train.py"]

    return write


@pytest.mark.usefixtures("virtual_gpus")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_group_is_made_in_any_way(program, capfd, tmp_path):
    hosts = 'os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"\n'  # as without torchrun: a new store for each group
    result = simulate_program(program(*(hosts + make for make, _ in WAYS)), 2)
    assert result.verdict is Verdict.PASS, str(result)
    assert sorted(capfd.readouterr().out.splitlines()) == sorted(f"3.0 {backend}" for _, backend in WAYS * 2)
    assert not (tmp_path / "group").exists()


HOSTED = """
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
store = dist.TCPStore("127.0.0.1", 29781, size, rank == 0)
store.set(str(rank), "done")
{more}
sys.exit(0)
"""


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ("if rank: time.sleep(1); store.get('0')", "Failed to recv, got 0 bytes. Connection was likely closed."),
        ("if rank: store.wait(['never'])", "Failed to recv, got 0 bytes. Connection was likely closed."),
        ("if rank: store.wait(['0']); time.sleep(1); store.set('a', ''); store.get('a')", "Broken pipe"),
        ("if rank: time.sleep(1); dist.PrefixStore('a', store).set('a', ''); store.set('a', '')", "Broken pipe"),
        ("if rank: time.sleep(1); store.set('last', '')", None),
        ("store.add('left', 1)\nwhile not rank and store.add('left', 0) < size: time.sleep(0.1)", None),
    ],
)
def test_a_store_ends_with_the_program_of_its_host(more, error, program):
    result = simulate_program(program("import time\n" + HOSTED.format(more=more)), 2)
    if error is None:
        assert result.verdict is Verdict.PASS, str(result)
        return
    (finding,) = result.findings
    assert finding.ranks == (1,)
    assert f"rank 1 raised DistNetworkError: {error}" in str(finding)
    assert "had ended its program when rank 1 still used the store" in str(finding)


@pytest.mark.parametrize(
    "make",
    [
        'dist.init_process_group("gloo", f"file://{os.getcwd()}/own{rank}", rank=rank, world_size=size)',
        'dist.init_process_group("gloo", store=dist.FileStore(f"own{rank}", size), rank=rank, world_size=size)',
    ],
)
def test_default_groups_on_stores_that_differ(program, make):
    (finding,) = simulate_program(program(make), 2).findings
    assert finding.ranks == (0, 1)
    assert "ranks 0, 1 use different stores for the default group: another file" in str(finding)


AT_AGENT = 'os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])'
"""As in a program: the address of the store that torchrun's agent has."""


@pytest.mark.usefixtures("virtual_gpus")
@pytest.mark.parametrize(
    ("first", "second", "passes"),
    [
        ('"gloo"', '"gloo"', False),
        ('"gloo"', '"nccl"', True),
        ('"gloo", "file://{path}/a", rank=rank, world_size=size', None, False),
        ('"gloo", "file://{path}/a", rank=rank, world_size=size', '"gloo"', True),
        ('"gloo", store=dist.PrefixStore("a", store), rank=rank, world_size=size', None, False),
        (
            '"gloo", store=dist.PrefixStore("a", store), rank=rank, world_size=size',
            '"gloo", store=dist.PrefixStore("b", store), rank=rank, world_size=size',
            True,
        ),
    ],
)
def test_a_second_group_at_a_place_finds_the_addresses_of_the_first(first, second, passes, program, tmp_path):
    store = f"store = dist.TCPStore({AT_AGENT}, is_master=False)\n"
    makes = [
        f"{store}dist.init_process_group({each})".replace("{path}", str(tmp_path)) for each in (first, second or first)
    ]
    result = simulate_program(program(*makes), 2)
    if passes:
        assert result.verdict is Verdict.PASS, str(result)
    else:
        assert re.search(
            "store still has rank [01]'s address of an earlier group, expected that of 'default .2", str(result)
        )


@pytest.mark.parametrize(
    ("is_master", "port"), [("False", "0"), ("rank == 0", "0"), ("True", "0"), ("rank == 0", "7"), ("True", "7")]
)
def test_under_torchrun_each_rank_may_be_a_client(is_master, port, program):
    make = f"""dist.init_process_group("gloo")
store = dist.TCPStore(*({AT_AGENT} + {port}), is_master={is_master}, wait_for_workers=False)
store.set(f"from {{rank}}", "x")
store.wait(["from 0", "from 1"], datetime.timedelta(seconds=5))"""
    result = simulate_program(program(make), 2)
    assert result.verdict is Verdict.PASS, str(result)


@pytest.mark.parametrize(
    "make",
    ['os.environ["MASTER_PORT"] = "29777"; init("gloo")', 'init("gloo", "tcp://127.0.0.1:29777", None, size, rank)'],
)
def test_under_torchrun_no_store_is_at_another_port(make, program):
    make = f"from functools import partial; init = partial(dist.init_process_group)\n{make}"
    (finding, *_) = simulate_program(program(make), 2).findings
    assert "DistNetworkError: The client socket has timed out after 1800000ms" in finding.body
    assert "no store listened there in time" in finding.body


def test_torchruns_variables(program, capfd):
    names = ["USE_AGENT_STORE", "ERROR_FILE", "SIGNALS_TO_HANDLE"]
    command = program('dist.init_process_group("gloo")')
    with open(command[0], "a") as file:
        file.write(f"print([os.environ['TORCHELASTIC_' + name] for name in {names}])\n")
    simulate_program(command, 1)
    assert "['True', '/dev/null', 'SIGTERM,SIGINT,SIGHUP,SIGQUIT']" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("make", "error"),
    [
        ('dist.init_process_group(init_method="x://y")', "RuntimeError: No rendezvous handler for x://"),
        (
            'import warnings; warnings.simplefilter("ignore"); dist.init_process_group("nope")',
            "AssertionError: Unknown backend type nope",
        ),
        ("dist.init_process_group(store=dist.HashStore())", "AssertionError: world_size must be positive if"),
        ("dist.init_process_group(); dist.init_process_group()", "initialize the default process group twice!"),
    ],
)
def test_errors_are_torchs(make, error, program):
    result = simulate_program(program(make), 2)
    assert result.findings[0].code is Code.RANK_ERROR
    assert error in result.findings[0].body


def test_a_group_whose_store_is_each_ranks_own_hangs(program):
    make = 'store = dist.HashStore(); store.get("from the other one")'
    result = simulate_program(program(make), 2)
    assert "waits for store key 'hash store 0 of rank 0/from the other one'  train.py:4" in result.findings[0].body


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (
            "rank=rank, world_size=4",
            "the program asks for world size 4, expected 2, the number of ranks that run: take world size 4 "
            "(--world-size 4), or let the program read WORLD_SIZE",
        ),
        (
            "rank=(rank + 1) % 2, world_size=size",
            "the program of rank 0 asks for rank 1, expected 0: let it read RANK, or pass the number "
            "that it was started with",
        ),
    ],
)
def test_another_world_than_runs(asked, line, program, capfd):
    command = program(f'dist.init_process_group("gloo", "tcp://localhost:29500", {asked})')
    assert main(["run", "--world-size", "2", *command]) == 2
    assert capfd.readouterr().err == f"ddpsim: {line}\n"
    with pytest.raises(UsageError):
        simulate_program(command, 2)


def test_torch_has_its_own_again():
    simulate(lambda rank: dist.HashStore().num_keys(), 2, isolation="process")
    assert torch._C._distributed_c10d.HashStore is dist.HashStore
    assert dist.HashStore().__class__.__module__.startswith("torch")
