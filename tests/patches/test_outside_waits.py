"""Waits for what is outside the simulation: other ranks run meanwhile, and virtual time goes on."""

import fcntl
import multiprocessing
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.request import urlopen

import pytest
import torch
import torch.distributed as dist
from torch.utils.file_baton import FileBaton

from ddpsim import Budget, simulate

both = pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.tier("ci"))])


def show(program, isolation, **limits):
    result = simulate(program, 2, isolation=isolation, budget=Budget(**{"seconds": 30, "stuck_seconds": 5, **limits}))
    return [(finding.code.value, finding.summary) for finding in result.findings if finding.code != "hazard.call_site"]


@both
def test_a_sleep_under_a_file_lock_takes_virtual_time(isolation, tmp_path):
    def program(rank):
        for take, number in ((fcntl.flock, 0), (fcntl.lockf, 1)):
            with open(tmp_path / str(number), "w") as file:
                take(file, fcntl.LOCK_EX)
                time.sleep(600)  # far longer than the run may take
                take(file, fcntl.LOCK_UN)
        dist.barrier()

    assert show(program, isolation) == []


@both
def test_a_file_lock_that_a_waiting_rank_holds_is_told_at_once(isolation, tmp_path):
    def program(rank):
        with open(tmp_path / "lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            dist.barrier()

    found = show(program, isolation, stuck_seconds=60)
    assert found == [("stuck", "rank 1 waits for a file lock, which a rank holds that cannot go on")]


HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print(flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def holder(tmp_path):
    """A function that starts a process which holds a file lock for some seconds, and returns the path."""
    started = []

    def hold(seconds):
        path = tmp_path / "held"
        command = [sys.executable, "-S", "-c", HOLDER, str(path), str(seconds)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        started[0].stdout.readline()
        return path

    yield hold
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.tier("ci")
@both
@pytest.mark.parametrize("how", ["wait", "poll"])
def test_a_file_lock_of_another_process_takes_as_much_virtual_as_real_time(isolation, how, holder):
    path = holder(0.5)

    def program(rank):
        if rank == 0:
            with open(path, "w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
        work = dist.all_reduce(torch.ones(1), async_op=True)
        while how == "poll" and not work.is_completed():
            pass
        work.wait(timedelta(seconds=20))  # which do not pass at once

    assert show(program, isolation) == []


@pytest.mark.tier("ci")
@both
def test_a_file_lock_that_another_process_keeps_is_stuck(isolation, holder):
    path = holder(60)

    def program(rank):
        with open(path, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    [(code, summary)] = show(program, isolation, stuck_seconds=0.3)
    expected = r"rank \d has waited for a file lock for 0.3 s, which process \d+ holds"
    assert code == "stuck"
    assert re.fullmatch(expected, summary)


@both
def test_a_rank_reads_from_the_http_server_of_another(isolation):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"state")

        def log_message(self, *arguments):
            pass

    def program(rank):
        server = HTTPServer(("127.0.0.1", 0), Handler) if rank == 0 else None
        if server:
            threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        port = [server and server.server_port]
        dist.broadcast_object_list(port)
        if rank == 1:
            with urlopen(f"http://127.0.0.1:{port[0]}", timeout=20) as answer:
                assert answer.read() == b"state"
        dist.barrier()
        if server:
            server.shutdown()
            server.server_close()

    assert show(program, isolation) == []


@pytest.mark.tier("ci")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
@both
def test_a_read_over_tls_takes_what_is_decrypted_already(isolation, tmp_path):
    make = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out certificate.pem -days 2 -subj /CN=localhost"
    subprocess.run(make.split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with context.wrap_socket(listener.accept()[0], server_side=True) as link:
            link.sendall(b"x" * 16000)  # one record: the kernel holds nothing after the first read
            link.recv(1)

    def program(rank):
        if dist.get_rank() == 0:
            raw = socket.create_connection(listener.getsockname(), timeout=60)
            with ssl._create_unverified_context().wrap_socket(raw) as link, link.makefile("rb", buffering=0) as reader:
                assert sum(len(reader.read(4000)) for _ in range(4)) == 16000
                link.sendall(b"x")
        dist.barrier()

    server = threading.Thread(target=serve)
    server.start()
    try:
        assert show(program, isolation) == []
    finally:
        listener.close()
        server.join(10)


@both
def test_a_read_from_a_socket_ends_at_its_time_out(isolation):
    def program(rank):
        ours, theirs = socket.socketpair()
        with ours, theirs, ours.makefile("rb") as reader:
            ours.settimeout(0.2)
            with pytest.raises(TimeoutError, match="timed out"):
                reader.read(1)

    assert show(program, isolation) == []


@both
def test_ranks_share_locks_and_data_of_multiprocessing(isolation):
    context = multiprocessing.get_context("fork")
    lock, barrier, value = context.Lock(), context.Barrier(2), context.Value("i", 0)
    (mine, yours), event, items = context.Pipe(), context.Event(), context.SimpleQueue()

    def program(rank):
        with lock:
            time.sleep(0.05)
            value.value += 1
        barrier.wait()
        assert value.value == 2
        if rank == 0:
            assert items.get() == "item"
            assert not mine.poll(0.05)  # a time-out in virtual time
            assert not lock.acquire(timeout=0.05)
            yours.send("go on")
            event.wait()
        else:
            lock.acquire()
            time.sleep(0.05)
            items.put("item")
            assert mine.recv() == "go on"
            lock.release()
            event.set()
        dist.barrier()

    assert show(program, isolation) == []


@both
def test_a_loop_that_looks_for_a_file_lets_other_ranks_make_it(isolation, tmp_path):
    def program(rank):
        if rank == 1:
            time.sleep(0.1)
            (tmp_path / "ready").touch()
        while not os.path.exists(tmp_path / "ready"):
            pass
        (tmp_path / f"rank {rank}").touch()
        while len(os.listdir(tmp_path)) < 3:
            pass
        dist.barrier()

    assert show(program, isolation) == []


def test_a_module_that_looks_for_files_while_it_is_imported_keeps_its_lock(tmp_path, monkeypatch):
    looks = "import os\nfor _ in range(3000): os.path.exists('x')\n"
    (tmp_path / "looks_for_files.py").write_text(looks)
    monkeypatch.syspath_prepend(str(tmp_path))

    def program(rank):
        import looks_for_files  # type: ignore[import-not-found]  # noqa: F401

        dist.barrier()

    assert show(program, "thread") == []


@pytest.mark.tier("ci")
def test_a_loop_that_opens_a_file_lets_other_ranks_make_it(tmp_path):
    def program(rank):
        while rank == 0:
            try:
                (tmp_path / "ready").read_text()
                break
            except FileNotFoundError:
                continue
        if rank == 1:
            (tmp_path / "ready").write_text("yes")
        dist.barrier()

    assert show(program, "process") == []


@pytest.mark.tier("ci")
def test_a_loop_for_a_file_that_never_comes_ends_at_the_limit(tmp_path):
    def program(rank):
        while not os.path.exists(tmp_path / "ready"):
            pass

    assert show(program, "thread", seconds=1) == [("budget", "the run took longer than 1 s of wall time")]


@both
@pytest.mark.parametrize("kind", ["hash", "file", "tcp", "prefix"])
def test_a_wait_for_a_key_of_an_older_store_lets_other_ranks_set_it(kind, isolation, tmp_path):
    if isolation == "process" and kind in ("hash", "prefix"):
        pytest.skip("a HashStore is of one process alone")
    made = {
        "hash": dist.HashStore,
        "file": lambda: dist.FileStore(str(tmp_path / "store"), 1),
        "tcp": lambda: dist.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False),
        "prefix": lambda: dist.PrefixStore("below", dist.HashStore()),
    }
    store = made[kind]()

    def program(rank):
        if rank == 0:
            store.wait(["key"], 60.0)
            assert store.get("key") == b"1"
            assert store.get("other") == b"2"
        else:
            time.sleep(5)
            store.set("key", "1")
            time.sleep(5)
            store.set("other", "2")

    assert show(program, isolation) == []


def test_a_key_of_an_older_store_that_never_comes_ends_at_the_time_out():
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    store.set_timeout(0.25)

    def program(rank):
        waits = (0.25, lambda: store.get("key")), (0.125, lambda: store.wait(["key"], 0.125))
        for seconds, wait in waits:
            start = time.monotonic()
            with pytest.raises(dist.DistStoreError, match=f"wait timeout after {round(seconds * 1000)}ms, keys: /key"):
                wait()
            assert round(time.monotonic() - start, 3) >= seconds

    assert show(program, "thread") == []


WAITER = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)"


@pytest.mark.tier("ci")
def test_a_child_process_may_wait_for_another_rank(tmp_path):
    path = str(tmp_path / "ready")

    def program(rank):
        if rank == 0:
            subprocess.run([sys.executable, "-S", "-c", WAITER, path], check=True)
        else:
            time.sleep(0.1)
            open(path, "w").close()
        dist.barrier()

    assert show(program, "process") == []


@pytest.mark.tier("ci")
@both
def test_a_child_process_takes_longer_than_a_rank_may_be_blocked(isolation):
    def program(rank):
        if rank == 0:
            subprocess.run(["sleep", "0.5"], check=True)
        dist.barrier()

    assert show(program, isolation, stuck_seconds=0.2) == []


@pytest.mark.tier("ci")
@both
def test_a_time_out_of_the_group_passes_while_a_rank_waits_for_a_file_lock_of_another_process(isolation, holder):
    path = holder(60)

    def program(rank):
        group = dist.new_group(timeout=timedelta(seconds=0.5))
        if rank == 0:
            with open(path, "w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
        dist.all_reduce(torch.ones(1), group=group)

    assert "Timed out waiting 500ms" in str(show(program, isolation, stuck_seconds=2))


@both
def test_a_lock_file_that_a_killed_build_left_is_named(isolation, tmp_path):
    lock = tmp_path / "lock"
    lock.touch()

    def program(rank, removes=False):
        if removes and rank == 1:
            time.sleep(0.1)
            os.remove(lock)
        FileBaton(str(lock)).wait()
        dist.barrier()

    seconds = 0.3 if isolation == "thread" else 3
    text = str(simulate(program, 2, isolation=isolation, budget=Budget(stuck_seconds=seconds)))
    assert f" has waited for the end of a build with the lock file {lock} for {seconds} s\n" in text
    assert "  try     delete the lock file if nothing builds the extension; " in text
    assert show(lambda rank: program(rank, True), isolation) == []


def test_a_rank_that_compiles_when_the_time_is_up_is_said_to_compile():
    def _write_ninja_file_and_build_library():
        while True:
            pass

    def program(rank):
        if rank == 0:
            _write_ninja_file_and_build_library()
        dist.barrier()

    (finding,) = simulate(program, 2, budget=Budget(seconds=0.3)).findings
    assert finding.summary == "the run took longer than 0.3 s of wall time, in which rank 0 compiles an extension"
