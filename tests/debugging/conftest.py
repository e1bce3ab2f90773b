"""pdb as it is without pytest, which puts its own `set_trace` there and takes the streams of before."""

import bdb
import pdb
import signal

import pytest
from _pytest.debugging import pytestPDB


@pytest.fixture(autouse=True)
def pdb_without_pytest(monkeypatch):
    on_interrupt = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(pdb, "set_trace", pytestPDB._saved[0][0])
    yield
    bdb.Breakpoint.next, bdb.Breakpoint.bplist, bdb.Breakpoint.bpbynumber = 1, {}, [None]
    signal.signal(signal.SIGINT, on_interrupt)  # `c` puts pdb's own there
