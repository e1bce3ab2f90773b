"""Error texts for gradients that a backward did not compute, or that no forward announced.

For missing gradients, ranks exchange messages in the group's store. A collective cannot be used: a rank with all its
gradients waits inside a bucket that another rank never started.
"""

import json
from collections.abc import Container, Mapping, Sequence

import torch.distributed as dist
from torch.distributed import ProcessGroup

from ddpsim.ddp.backward_progress import GraphKnowledge
from ddpsim.ddp.group_store import count_calls, post_message, read_messages
from ddpsim.ddp.text_formats import ranks_text

_SHOWN = 6


def describe_open_backward(missing: Sequence[str], *, key: str, group: ProcessGroup) -> str:
    """Return one line that lists, for each rank, its parameters without a gradient; ranks exchange it under `key`."""
    members = dist.get_process_group_ranks(group)
    own = members[dist.get_rank(group)]
    found = _exchange_missing_names(missing, key=key, own=own, members=members, group=group)
    return describe_missing_gradients(found, members)


def describe_missing_gradients(missing: Mapping[int, Sequence[str]], members: Sequence[int]) -> str:
    """Return the error text, given each rank's parameters without gradient; a rank not in `missing` did not answer."""
    ranks_by_names: dict[tuple[str, ...], list[int]] = {}
    for rank in members:
        if rank in missing:
            ranks_by_names.setdefault(tuple(missing[rank]), []).append(rank)
    silent = [rank for rank in members if rank not in missing]
    no_answer = f" ({ranks_text(silent)} gave no answer: they may wait for these buckets, or have ended)"
    waiting = no_answer if silent else ""
    if not any(ranks_by_names):
        return (
            "the last backward left buckets open, though every gradient came: the reduction did not finish, as an "
            f"exception interrupted the backward{waiting}"
        )
    found = "; ".join(f"{_format_names(names)} on {ranks_text(ranks)}" for names, ranks in ranks_by_names.items())
    return (
        f"the last backward left buckets open: no gradient came for {found}{waiting}. If the loss does not depend on "
        "these parameters, use find_unused_parameters=True; otherwise use the whole output of the forward. "
        "An exception during the backward also leaves gradients out"
    )


def _exchange_missing_names(
    missing: Sequence[str], *, key: str, own: int, members: Sequence[int], group: ProcessGroup
) -> dict[int, Sequence[str]]:
    # Every rank counts its own attempts, since all ranks fail together.
    attempt = count_calls(group, f"{key}/{own}")
    post_message(group, f"{key}/{own}/{attempt}", json.dumps(list(missing)))
    keys = {rank: f"{key}/{rank}/{attempt}" for rank in members if rank != own}
    messages = read_messages(group, list(keys.values()))
    answers = {rank: json.loads(messages[key]) for rank, key in keys.items() if key in messages}
    return {**answers, own: missing}


def _format_names(names: Sequence[str]) -> str:
    if not names:
        return "none is missing"
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def describe_surplus(name: str, index: int, graph: GraphKnowledge, learned: Container[int]) -> str:
    """Return the error text for a parameter with one gradient too many; `learned` are the parameters that get one."""
    if graph is GraphKnowledge.ALL_USED:
        return (
            f"{name} got more gradients in this backward than expected, from a reentrant checkpoint that runs twice or "
            "from two backwards: use static_graph=True if the graph is always the same, or checkpoint with "
            "use_reentrant=False"
        )
    if graph is GraphKnowledge.SEARCHED:
        return (
            f"{name} got a gradient that was not expected in this backward: return all tensors of the loss from the "
            "forward, or use static_graph=True if several reentrant checkpoints use the parameter"
        )
    count = "more gradients in this backward than" if index in learned else "a gradient, but none"
    return f"{name} got {count} in the first backward: leave out static_graph=True if the graph changes"


def describe_bypassed(name: str) -> str:
    """Return the error text for a gradient computed without a forward through the wrapped model."""
    return (
        f"a gradient of {name} came, but no forward through the DistributedDataParallel waits for it: call the wrapped "
        "model once for each backward, not its inner module, and add several losses to call backward once; or run this "
        "under no_sync()"
    )
