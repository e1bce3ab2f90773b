"""Start the servers that a program's ranks are forked from before this process imports torch.

Each takes a second or two, so they run at the same time. The decision is a guess from the command line: a server that
is not needed does no harm, and a missing one is started later.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import pairwise

from ddpsim.simulator.choices import start_in
from ddpsim.simulator.errors import ReplayError, UsageError
from ddpsim.simulator.launching.script import Script, start_of_programs
from ddpsim.simulator.launching.servers import STANDING, server_keys

_WITHOUT = ("-h", "--help", "processes", "--transport=processes", "--torchrun")


def start_servers(words: Sequence[str]) -> None:
    """Start the servers if the command line, as `with_program_as_one_word` returns it, names a program to run."""
    if "--" not in words or any(word in words for word in _WITHOUT):
        return
    end = words.index("--")
    options, program = words[:end], Script(tuple(shlex.split(words[end + 1])))
    tokens = words[end + 2 :]
    try:
        program.check()
        start = start_in(tokens[0]) if tokens else None
        start = start or start_of_programs("--alike" in options)
        preload = [value for option, value in pairwise(options) if option == "--preload"]
        STANDING.start(server_keys(program, start.hash_seeds, preload), wants_dynamo=program.may_need_dynamo())
    except (UsageError, ReplayError, OSError):  # the command reports it
        return
