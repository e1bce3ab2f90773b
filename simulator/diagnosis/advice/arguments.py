"""Causes: different arguments of one call on the ranks (mismatch.*)."""

from __future__ import annotations

from ddpsim.simulator.diagnosis.advice.facts import Argument, Nothing, Ranks, about


class Arguments:
    """Causes: different arguments of one call on the ranks (mismatch.*)."""

    OTHER_ARGUMENT = about(Argument)(
        "{who} passed a different {field} to the same call",
        "pass the same {field} on every rank of the group",
    )
    OTHER_WITHOUT_LINES = about(Argument)(
        "{who} passed a different {field} to the same call, or made another call: the records contain no source lines",
        "pass the same {field} on every rank of the group; if these are two calls, let every rank make both, in one "
        "order",
    )
    OTHER_DTYPE = about(Argument)(
        "{who} passed a different dtype to the same call, as happens with a tensor made from integers, or a model in "
        "another precision",
        "pass the same dtype on every rank of the group: set it where the tensor is created, torch.tensor(..., "
        "dtype=torch.float32)",
    )
    OTHER_REDUCTION = about(Argument)(
        "{who} passed a different reduction to the same call; no backend compares reductions, and parts of the tensor "
        "may be reduced by either one",
        "pass the same reduction on every rank of the group",
    )
    OTHER_LAYOUT = about(Argument)(
        "{who} passed the same number of elements in another shape; backends move them in memory order and do not "
        "notice, so unrelated elements are combined",
        "use one shape for the tensor on every rank of the group",
    )
    OTHER_SHAPE_GATHERED = about(Argument)(
        "{who} passed a different shape to the same call, as happens with a last batch or a filter",
        "pass the same shape on every rank of the group: gather the sizes first and pad, or use all_gather_object",
    )
    OTHER_ROOT = about(Argument)(
        "{who} passed a different root to the same call",
        "pass the same root on every rank of the group: a global rank as src or dst, a rank within the group as "
        "group_src or group_dst",
    )
    OTHER_DESTINATION = about(Argument)(
        "{who} passed a different root to the same call, and only one rank can receive its result",
        "pass the same root on every rank of the group, or use all_reduce or all_gather if every rank needs the result",
    )
    OTHER_SPLITS = about(Ranks)(
        "the splits of {who} do not match what the other ranks send or expect",
        "make input split j of rank i equal to output split i of rank j, for example by exchanging the sizes first",
    )
    PAIRED_BY_ORDER = about(Nothing)(
        "backends pair calls by order and size, not by meaning: these calls move each other's data, and no backend "
        "would notice",
        "let every rank of the group make the same calls in the same order",
    )
