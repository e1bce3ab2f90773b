"""What ends with Python itself, as Python 3.10 to 3.14 keep it."""

import threading
from functools import partial

import pytest

from ddpsim.simulator.rank_processes.own_process import shut_down_process_executors


def closure(func, *arguments):
    return lambda: func(*arguments)


@pytest.mark.parametrize("keep", [partial, closure])
def test_executors_of_processes_end_and_nothing_else(monkeypatch, keep):
    ended = []

    def executor(name):
        ended.append(name)

    def other(name):
        ended.append(name)

    executor.__module__ = "concurrent.futures.process"
    monkeypatch.setattr(threading, "_threading_atexits", [keep(executor, "executor"), keep(other, "other")])
    shut_down_process_executors()
    assert ended == ["executor"]
