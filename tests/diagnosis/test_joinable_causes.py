"""What a Joinable of the program's own is told whose hooks do not make the calls of a step."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from ddpsim import simulate
from ddpsim.simulator.diagnosis.advice import Cause
from tests.kit.rows import rows

from .ending import ends_with


def add(elements):
    dist.all_reduce(torch.ones(elements))


class Hook(JoinHook):
    def __init__(self, calls, post_hook):
        self.calls = calls
        self.own_post_hook = post_hook

    def main_hook(self):
        for elements in self.calls:
            dist.all_reduce(torch.zeros(elements))

    def post_hook(self, is_last_joiner):
        if self.own_post_hook == "last only" and is_last_joiner:
            dist.broadcast(torch.zeros(1), src=dist.get_rank())
        if self.own_post_hook == "own root":
            dist.broadcast(torch.zeros(1), src=dist.get_rank())
        if self.own_post_hook == "all":
            dist.broadcast(torch.zeros(1), src=2)


class Counter(Joinable):
    """Makes two calls in a step."""

    def __init__(self, *, notifies=True, shadows=(1, 3), post_hook=None):
        super().__init__()
        self.notifies = notifies
        self.hook = Hook(shadows, post_hook)

    def step(self):
        if self.notifies:
            Join.notify_join_context(self)
        add(1)
        add(3)

    def join_hook(self, **options):
        return self.hook

    @property
    def join_device(self):
        return torch.device("cpu")

    @property
    def join_process_group(self):
        return dist.group.WORLD


def run(after_step=lambda: None, **options):
    """Rank r makes r + 1 steps."""

    def program(rank):
        counter = Counter(**options)
        with Join([counter]):
            for _ in range(rank + 1):
                counter.step()
                after_step()

    return simulate(program, 3)


@pytest.mark.parametrize("post_hook", [None, "all"])
def test_hooks_that_make_the_calls_of_a_step(post_hook):
    assert run(post_hook=post_hook).findings == ()


@rows(
    "options",
    [{"notifies": False}, {"shadows": (1,)}, {"shadows": (3, 1)}, {"shadows": (1, 1)}, {"shadows": ()}],
    ids=str,
)
def test_a_step_that_its_main_hook_does_not_repeat(options):
    (finding,) = run(**options).findings
    ends_with(finding, Cause.MAIN_HOOK_DIFFERS, who="rank 0")


def test_a_call_of_the_loop_under_a_joinable():
    (finding,) = run(lambda: dist.all_reduce(torch.ones(7))).findings
    ends_with(finding, Cause.MAIN_HOOK_DIFFERS, who="rank 0", operation="all_reduce")


@pytest.mark.parametrize(("post_hook", "code"), [("last only", "deadlock.missing_rank"), ("own root", "mismatch.root")])
def test_a_post_hook_that_does_not_call_alike(post_hook, code):
    (finding,) = run(post_hook=post_hook).findings
    assert finding.code == code
    ends_with(finding, Cause.POST_HOOKS_DIFFER)
