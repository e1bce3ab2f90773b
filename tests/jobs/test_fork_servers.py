"""The servers that processes are forked from: they end, whatever else the process has started."""

import subprocess
import sys

import pytest

STANDING_BY = """
import multiprocessing, time
from ddpsim.scenarios.jobs import job_launcher as launcher

launcher._both = lambda: ()  # none of its own: what it leaves behind is the tracker of semaphores

if __name__ == "__main__":
    with launcher.standing_by():
        process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
        process.start()
    print("gone on")
    process.kill()
    process.join()
"""


@pytest.mark.tier("nightly")
def test_a_process_that_lives_on_holds_nobody_up(tmp_path):
    script = tmp_path / "standing_by.py"
    script.write_text(STANDING_BY)
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.returncode) == ("gone on\n", 0), ended.stderr
