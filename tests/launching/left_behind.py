"""What a run may not leave behind; the servers stay, from which ranks of programs are forked."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from ddpsim.simulator.launching.script import Script, program_seeds
from ddpsim.simulator.launching.servers import STANDING, server_keys
from tests.kit.leftovers import children, new_files, open_files


def with_servers():
    """Start the servers of programs, so that they are there before and afterwards."""
    keys = server_keys(Script(("-",)), program_seeds(False).hash_seeds, ())
    STANDING.start_servers(keys, wants_dynamo=False)


@contextmanager
def nothing_is_left(other_servers: bool = False) -> Iterator[None]:
    """Fail where the block leaves a file open or a process running that was not there before it.

    Less is fine: what earlier tests left to the garbage collector may be closed meanwhile. With `other_servers`
    the servers may have been started anew, under other numbers: no more than before are expected.
    """
    gc.collect()
    files, processes = open_files(), children()
    yield
    if other_servers:
        with_servers()  # which end where something goes wrong, and are others then
        assert len(open_files()) <= len(files)
        assert len(children()) <= len(processes)
    else:
        assert new_files(files) == {}
        assert [number for number in children() if number not in processes] == []
