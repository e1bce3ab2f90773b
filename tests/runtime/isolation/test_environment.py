"""Environment variables per rank, in Python and in C."""

import ctypes
import os
from unittest import mock

import pytest

from ddpsim.simulator.hosts import LOOPBACK, MASTER_PORT

early = os.environ


def in_c(name):
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    value = getenv(name.encode())
    return None if value is None else value.decode()


@pytest.fixture(autouse=True)
def _variables(monkeypatch):
    monkeypatch.setenv("KEPT", "host")
    monkeypatch.delenv("MADE", raising=False)
    monkeypatch.setenv("RANK", "a launcher's")


def test_what_a_launcher_sets(interleave):
    def program(rank):
        yield
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "KEPT")
        return [os.environ[name] for name in names]

    assert interleave(program, 3) == [
        [str(rank), str(rank), "3", "3", LOOPBACK, MASTER_PORT, "host"] for rank in range(3)
    ]
    assert os.environ["RANK"] == "a launcher's"


def test_c_sees_the_host_again_when_ranks_are_abandoned(isolation):
    isolation.switch_rank(None, 0)
    os.environ["MADE"] = "0"
    os.environb[b"KEPT"] = b"0"
    isolation.switch_rank(0, 1)
    assert (in_c("MADE"), in_c("KEPT")) == (None, "host")
    os.environ["MADE"] = "1"
    del os.environ["KEPT"]
    isolation.uninstall()
    assert (in_c("MADE"), in_c("KEPT")) == (None, "host")
    assert in_c("RANK") == "a launcher's"


def test_patched_in_a_rank(interleave):
    def program(rank):
        with mock.patch.dict(os.environ, {"MADE": str(rank)}, clear=rank == 1):
            yield
            inside = os.environ.get("MADE"), os.environ.get("KEPT"), in_c("MADE"), in_c("KEPT")
            yield
        yield
        return inside, os.environ.get("MADE"), os.environ["KEPT"], os.environ["RANK"]

    assert interleave(program, 2) == [
        (("0", "host", "0", "host"), None, "host", "0"),
        (("1", None, "1", None), None, "host", "1"),
    ]
    assert (in_c("MADE"), in_c("KEPT")) == (None, "host")


def test_patching_leaves_nothing_to_put_into_c(isolation):
    isolation.switch_rank(None, 0)
    with mock.patch.dict(os.environ, {"MADE": "0"}):
        pass
    isolation.switch_rank(0, 1)
    isolation.switch_rank(1, 0)
    # What a launcher sets is not in C unless it was written there.
    assert sorted(os.environ._data.written) == sorted(
        os.environ.encodekey(name)
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    )


def test_what_ranks_wrote_alike_stays_in_c(isolation, monkeypatch):
    # As each rank does that sets MASTER_ADDR and MASTER_PORT at its start.
    for giver, rank in ((None, 0), (0, 1)):
        isolation.switch_rank(giver, rank)
        assert in_c("MADE") is None
        os.environ["MADE"] = "alike"
    with monkeypatch.context() as patch:
        patch.setattr(os, "putenv", None)
        patch.setattr(os, "unsetenv", None)
        isolation.switch_rank(1, 0)
    assert in_c("MADE") == "alike"
    isolation.switch_rank(0, 2)
    assert in_c("MADE") is None


def test_a_rank_inherits_what_the_host_wrote_meanwhile(isolation):
    isolation.switch_rank(None, 0)
    isolation.switch_rank(0, None)
    os.environ["KEPT"] = "later"
    isolation.switch_rank(None, 1)
    isolation.switch_rank(1, 2)
    assert os.environ["KEPT"] == "later"
