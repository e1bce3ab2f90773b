"""What a run may not leave behind; the servers stay, from which ranks of programs are forked."""

import os
from pathlib import Path

from ddpsim.simulator.rank_processes.program import Program, start_of_programs
from ddpsim.simulator.rank_processes.servers import STANDING, kinds_of


def with_servers():
    """Start the servers of programs, so that they are there before and afterwards."""
    kinds = kinds_of(Program(("-",)), start_of_programs(False).hash_seeds, ())
    STANDING.start(kinds, wants_dynamo=False)


def what_there_is():
    """The open files and the children of this process."""
    children = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
    return set(os.listdir("/proc/self/fd")), sorted(number for numbers in children for number in numbers)
