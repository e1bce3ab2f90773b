"""The lock of torch's compiler in ranks: who waits for it, and who must not."""

from ddpsim import simulator
from ddpsim.simulator.patches.compiler import CompilerLock


def enter(lock, file):
    """Enter the lock as dynamo does that is asked about a function which code of this file calls."""
    names = {}
    exec(compile("def call(ask): ask()", file, "exec"), names)

    def asked():
        with lock:
            pass

    names["call"](asked)


def test_what_the_simulator_calls_waits_for_no_turn_to_compile():
    lock = CompilerLock()
    enter(lock, f"{simulator.__path__[0]}/rank_processes/channel.py")
    assert lock._of_run is None
    enter(lock, "train.py")
    assert lock._of_run is not None
    assert lock._of_run.acquire(False)  # both have left it
