"""Causes: what one call passes (mismatch.*)."""

from __future__ import annotations

from ddpsim.simulator.diagnosis.advice.facts import Argument, Nothing, Ranks, about


class Arguments:
    """What one call passes (mismatch.*)."""

    OTHER_ARGUMENT = about(Argument)(
        "{who} passed another {field} to the same call",
        "pass the same {field} on every rank of the group",
    )
    OTHER_WITHOUT_LINES = about(Argument)(
        "{who} passed another {field} to the same call, or made another call: the records know no lines",
        "pass the same {field} on every rank of the group; if these are two calls, let every rank make both, in one "
        "order",
    )
    OTHER_DTYPE = about(Argument)(
        "{who} passed another dtype to the same call, as a tensor made of whole numbers, or a model in another "
        "precision, has",
        "pass the same dtype on every rank of the group: name it where the tensor is made, "
        "torch.tensor(..., dtype=torch.float32)",
    )
    OTHER_REDUCTION = about(Argument)(
        "{who} passed another reduction to the same call; no backend compares them, and parts of the tensor may "
        "be reduced by either",
        "pass the same reduction on every rank of the group",
    )
    OTHER_LAYOUT = about(Argument)(
        "{who} passed as many elements in another shape; backends move them in memory order and notice nothing, "
        "so elements are combined that do not belong together",
        "bring the tensor into one shape on every rank of the group",
    )
    OTHER_SHAPE_GATHERED = about(Argument)(
        "{who} passed another shape to the same call, as a last batch or a filter may leave it",
        "pass the same shape on every rank of the group: gather the sizes first and pad, or use all_gather_object",
    )
    OTHER_ROOT = about(Argument)(
        "{who} passed another root to the same call",
        "pass the same root on every rank of the group: a global rank as src or dst, a rank within the group as "
        "group_src or group_dst",
    )
    OTHER_DESTINATION = about(Argument)(
        "{who} passed another root to the same call, and only one rank can have its result",
        "pass the same root on every rank of the group, or use all_reduce or all_gather where every rank wants the "
        "result",
    )
    OTHER_SPLITS = about(Ranks)(
        "the splits of {who} do not fit what the others send or expect",
        "let input split j of rank i be output split i of rank j, for instance by exchanging the sizes first",
    )
    PAIRED_BY_ORDER = about(Nothing)(
        "backends pair calls by order and size, not by meaning: these calls move each other's data, and no backend "
        "would notice",
        "let every rank of the group make the same calls in the same order",
    )
