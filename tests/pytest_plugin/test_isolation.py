"""Marked tests whose ranks are processes: `isolation="process"`."""

import pytest

from tests.pytest_plugin.reading import HANGS, marked

PROCESS = 'ranks(2, isolation="process")'


def test_ranks_share_nothing(run):
    source = marked(
        "COUNT.append(rank)\ndist.barrier()\nassert COUNT == [rank] and tmp_path.is_dir()",
        PROCESS,
        arguments="rank, tmp_path",
    )
    run("\nCOUNT = []\n" + source + "\ndef test_afterwards():\n    assert COUNT == []\n").assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("assert dist.get_rank() == 0, 'only rank 0'", "rank 1 raised AssertionError: only rank 0"),
        (HANGS, "rank 1  waits in barrier #0"),
        ("import os\nif rank:\n    os._exit(3)\ndist.barrier()", "rank 1 ended by os._exit(3)"),
    ],
    ids=["assertion", "deadlock", "gone"],
)
def test_a_failure_is_told_as_elsewhere(fails, body, told):
    fails(marked(body, PROCESS)).stdout.fnmatch_lines([f"*{told}*", "  replay  pytest *"])


@pytest.mark.tier("ci")
def test_it_is_explored(fails):
    source = marked(
        "if rank == 0:\n    seen = torch.zeros(1)\n    assert dist.recv(seen) == 1\n    dist.recv(seen)\n"
        "else:\n    dist.send(torch.ones(1), 0)",
        'ranks(3, isolation="process", explore=True)',
    )
    fails(source).stdout.fnmatch_lines(["*rank 0 raised AssertionError*"])


@pytest.mark.tier("ci")
def test_a_rank_that_skips(run):
    run(marked("pytest.skip('not here')", PROCESS)).assert_outcomes(skipped=1)


def test_what_there_is_no_such_thing_of(fails):
    failure = fails(marked("pass", 'ranks(2, isolation="container")'))
    failure.stdout.fnmatch_lines(["*isolation is 'container', expected 'thread' or 'process': give one of these*"])


@pytest.mark.usefixtures("virtual_gpus")
def test_ranks_find_the_gpus_that_a_marker_gives(run, fails):
    body = "assert torch.cuda.device_count() == 3 and torch.zeros(1).cuda(2).is_cuda"
    run(marked(body, 'ranks(2, isolation="process", gpus=3)')).assert_outcomes(passed=1)
    failure = fails(marked("pass", "ranks(2, gpus=3)"))
    failure.stdout.fnmatch_lines(["*gpus is 3, but ranks are threads, which share torch.cuda: *"])
