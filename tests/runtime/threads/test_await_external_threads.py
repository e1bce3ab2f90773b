"""Waiting in real time for threads outside the simulation, when no thread of a rank can go on."""

from types import SimpleNamespace

from ddpsim.simulator.runtime.threads.lock_steps import LockSteps


class Given:
    """A lock that a rank waits for, and that somebody outside gives."""

    def __init__(self):
        self.is_given = False

    def wake_after_external_release(self):
        return self.is_given


def waiting():
    steps, lock = LockSteps(SimpleNamespace(is_stopping=False)), Given()
    steps.waited.append(lock)
    return steps, lock


def test_who_waits_goes_on_once_somebody_outside_has_given_it_also_one_that_has_ended():
    steps, lock = waiting()
    assert not steps.await_external_threads()  # nobody is there
    steps.has_external_threads = lambda: True
    lock.is_given = True
    assert steps.await_external_threads()

    def ends_meanwhile():
        was_there, lock.is_given = not lock.is_given, True
        return was_there

    lock.is_given, steps.has_external_threads = False, ends_meanwhile
    assert steps.await_external_threads()
    lock.is_given = False

    def has_just_ended():
        lock.is_given = True
        return False

    steps.has_external_threads = has_just_ended
    assert steps.await_external_threads()
