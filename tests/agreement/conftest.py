"""What the comparisons with gloo share: the server that processes are forked from."""

import pytest

from ddpsim.scenarios.jobs.job_launcher import keep_fork_servers


@pytest.fixture(scope="session")
def server():
    """Without it each comparison would load torch anew."""
    with keep_fork_servers():
        yield
