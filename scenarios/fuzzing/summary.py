"""The summary that a campaign prints at its end."""

from __future__ import annotations

from ddpsim.scenarios.fuzzing.campaign import Campaign, End
from ddpsim.scenarios.fuzzing.corpus import CorpusState
from ddpsim.scenarios.fuzzing.shrinking.size_text import counted


def summary(campaign: Campaign) -> str:
    """Return how much was run, the outcomes, and each failure with its file; the last line counts the failures."""
    return "\n".join([*_extent(campaign), "", *_found(campaign)])


def _extent(campaign: Campaign) -> list[str]:
    """Return the lines on how much was run, and the outcomes."""
    totals, seconds = campaign.totals, campaign.seconds
    rate = totals.count / seconds if seconds else 0.0
    end = (
        f"  ({campaign.end.value}{': ' if campaign.note else ''}{campaign.note})"
        if campaign.end is not End.BUDGET
        else ""
    )
    return [
        f"{totals.count} executions in {seconds:.1f} s, {rate:.0f} a second, from seed {campaign.plan.seed}{end}",
        *(
            f"  {count:>7}  {kind} on {engine.value}"
            for (kind, engine), count in sorted(
                totals.executions.items(), key=lambda each: (each[0][0], each[0][1].value)
            )
        ),
        "outcomes",
        *(f"  {count:>7}  {outcome}" for outcome, count in sorted(totals.outcomes.items(), key=_by_count)),
    ]


def _by_count(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def _found(campaign: Campaign) -> list[str]:
    lines = [line for kept in campaign.kept for line in (*str(kept).splitlines(), "")]
    old = sum(tried.state is CorpusState.FAILS for tried in campaign.corpus)
    again = f"{counted(old, 'failure')} reproduced from the corpus" if old else ""
    count = sum(not kept.is_known for kept in campaign.kept)
    new = counted(count, "new failure") if count else ""
    found = " and ".join(part for part in (new, again) if part)
    return [*lines, f"found: {found}" if found else "nothing found"]
