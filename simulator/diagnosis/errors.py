"""What a rank's own program raised, as a finding."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.calls import Site
from simulator.diagnosis.explain import indent, rank_list, shortened
from simulator.verdict import Code, Finding

_KNOWN_CAUSES = (
    (
        "Expected to have finished reduction in the prior iteration",
        "some parameters got no gradient in the step before, so their bucket was never reduced",
        "pass find_unused_parameters=True to DistributedDataParallel, or let every parameter take part in the loss",
    ),
    (
        "Expected to mark a variable ready only once",
        "a parameter's gradient was accumulated twice in one backward (reentrant checkpointing, or a layer used twice)",
        "use checkpoint(..., use_reentrant=False), or static_graph=True",
    ),
    (
        "trying to initialize the default process group twice",
        "the program initialises the default group, which the simulator has done already",
        "leave init_process_group out, or guard it with `if not dist.is_initialized():`",
    ),
)


def rank_error(ranks: Sequence[int], error: str, site: Site | None, traceback_text: str) -> Finding:
    """The finding for an exception that left the program of `ranks`. `error` is its type and message in one line."""
    summary = f"{rank_list(ranks)} raised {shortened(error, 200)}" + (f" at {site}" if site else "")
    lines = [f"ERROR  {Code.RANK_ERROR}", f"  {summary}"]
    for fragment, cause, remedy in _KNOWN_CAUSES:
        if fragment in error:
            lines += [indent("cause", cause), indent("try", remedy)]
    lines += ["  " + line for line in traceback_text.rstrip().splitlines()]
    return Finding(Code.RANK_ERROR, tuple(sorted(ranks)), summary, "\n".join(lines), (site,) if site else ())
