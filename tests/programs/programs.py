"""Short ways to write programs."""

from ddpsim.simulator.programs.program import Issue, Program, Wait


def reduced(name, *shape, group="default", dtype="float32", reduction="SUM"):
    """An all_reduce."""
    return Issue(name, "all_reduce", group, (shape or (4,),), dtype, reduction)


def barrier(name, group="default"):
    """A barrier."""
    return Issue(name, "barrier", group)


def sent(name, peer, *, tag=0, dtype="float32", shape=(4,)):
    """A message to `peer`."""
    return Issue(name, "send", shapes=(shape,), dtype=dtype, peer=peer, tag=tag)


def received(name, peer, *, tag=0, dtype="float32", shape=(4,)):
    """A message from `peer`."""
    return Issue(name, "recv", shapes=(shape,), dtype=dtype, peer=peer, tag=tag)


def waited(*issues):
    """Each call, waited for at once."""
    return tuple(step for issue in issues for step in (issue, Wait(issue.name)))


def program(*ranks, groups=()):
    """A program of the steps of each rank."""
    return Program(len(ranks), tuple(groups), tuple(tuple(steps) for steps in ranks))
