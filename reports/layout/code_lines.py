"""Finds the lines of the program that a finding is about, with the ranks at each line and what they did there.

Each line is listed once, the line to blame first. Ranks that only wait have a role of their own.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ddpsim.reports.document import Call, Finding, Rank, Run, Waiting
from ddpsim.reports.layout.mismatches import differing_calls
from ddpsim.simulator.choices import RankOrThread
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.wording import rank_list

CULPRIT, WAITS, OTHER = "culprit", "waits", "other"
"""Roles of ranks at a line of the program: to blame, only waiting, or matched with a rank to blame. If ranks disagree
and any may be wrong, the roles are side0, side1 and so on."""
_MOST_PRESENT = 4
SIDES = 4
"""The number of colours for ranks that disagree; a fifth set of ranks looks like the first."""


class RanksAtLine(NamedTuple):
    """Ranks that did the same at a line of the program."""

    role: str
    who: str
    """The ranks or threads, such as "ranks 0, 2" or "rank 1, thread reader"."""
    text: str
    """What these ranks did there, in words for one rank or several; may be ""."""


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of the program, with the ranks at it."""

    site: int
    """Index of the line, in the run's sites."""
    caller: int | None
    """Index of the line in another file that called this line."""
    present: tuple[RanksAtLine, ...]

    @property
    def role(self) -> str:
        """The role of the first ranks at the line, which is the most important."""
        return self.present[0].role


class _RankAtLine(NamedTuple):
    role: str
    text: str
    who: RankOrThread
    site: int | None
    caller: int | None = None


def code_lines_of(run: Run, finding: Finding) -> tuple[CodeLine, ...]:
    """Return the program's lines that a finding is about, the line to blame first; () if no line is known."""
    there = list(_ranks_in_mismatch(run, finding) if finding.is_mismatch else _blamed_ranks(run, finding))
    if finding is run.leading and not finding.is_mismatch:
        others = (each for each in run.waiting if each.who.rank not in finding.ranks or each.who.thread)
        there += [_rank_in_wait(run, each, WAITS) for each in others]
    shown = {each.site for each in there}
    there += [
        _RankAtLine(OTHER, "named in the lines below", RankOrThread(-1), site)
        for site in finding.sites
        if site not in shown
    ]
    return tuple(_group_by_line(run, there))


def _group_by_line(run: Run, there: Iterable[_RankAtLine]) -> Iterator[CodeLine]:
    by_line: dict[int, dict[tuple[str, str], list[RankOrThread]]] = {}
    callers: dict[int, set[int | None]] = {}
    for each in there:
        if each.site is not None:
            by_line.setdefault(each.site, {}).setdefault((each.role, each.text), []).append(each.who)
            callers.setdefault(each.site, set()).add(each.caller)
    found = []
    for site, groups in by_line.items():
        ordered = sorted(groups.items(), key=lambda each: _role_order(each[0][0]))
        caller = next(iter(callers[site])) if len(callers[site]) == 1 else None  # several have several callers
        found.append(CodeLine(site, caller, tuple(_ranks_at_line(run, ordered))))
    yield from sorted(found, key=lambda line: _role_order(line.role))


def _ranks_at_line(run: Run, groups: Sequence[tuple[tuple[str, str], list[RankOrThread]]]) -> Iterator[RanksAtLine]:
    """Yield the ranks at a line of the program. If they did many different things, only the first are described."""
    yield from (RanksAtLine(role, _name_ranks(run, who), text) for (role, text), who in groups[:_MOST_PRESENT])
    rest: dict[str, list[RankOrThread]] = {}
    for (role, _), who in groups[_MOST_PRESENT:]:
        rest.setdefault(role, []).extend(who)
    yield from (RanksAtLine(role, _name_ranks(run, who), "the same, in other calls") for role, who in rest.items())


def _role_order(role: str) -> int:
    return (WAITS, OTHER).index(role) + 1 if role in (WAITS, OTHER) else 0


def _name_ranks(run: Run, all_: list[RankOrThread]) -> str:
    """Name the ranks and threads; a single rank also with its position in the program's device mesh."""
    ranks = [who.rank for who in all_ if not who.thread and who.rank >= 0]
    threads = [f'rank {who.rank}, thread "{who.thread}"' for who in all_ if who.thread]
    position = run.ranks[ranks[0]].coordinates if len(ranks) == 1 and run.ranks else ""
    named = rank_list(ranks) + (f" ({position})" if position else "")
    return "; ".join([named] * bool(ranks) + threads[:3] + ["..."] * (len(threads) > 3))


def _ranks_in_mismatch(run: Run, finding: Finding) -> Iterator[_RankAtLine]:
    """Yield the ranks whose matched calls differ: the differing rank and the others, or all if any may be wrong."""
    differing = differing_calls(run)
    for index in finding.slots:
        for issue in sorted(run.slots[index].issues, key=lambda issue: run.events[issue].rank):
            event, call = run.events[issue], run.issued_call(issue)
            what = differing[issue]
            side = f"side{what.side % SIDES}" if what.side >= 0 else ""
            role = side or (CULPRIT if what.is_odd else OTHER)
            more = what.text.removeprefix(call.operation).strip()
            yield _RankAtLine(
                role, _describe_call(_call_name(run, call), more, call), event.who, call.site, call.caller
            )


def _describe_call(name: str, more: str, call: Call) -> str:
    """Return a call's name, what differs in it, and which part of DDP made it, as text without repetition."""
    words = ["" if more in (call.purpose, call.origin) else more, call.origin]
    return ": ".join(filter(None, [name, ", ".join(filter(None, words))]))


def _blamed_ranks(run: Run, finding: Finding) -> Iterator[_RankAtLine]:
    """Yield the line of each rank that a finding blames: the line at which it waits, or its last call."""
    waiting = {each.who: each for each in run.waiting}
    first = finding.sites[0] if finding.sites else None
    last = _last_calls(run) if finding.code.startswith("deadlock.") else {}
    blamed = set(run.blamed_ranks(finding))
    for rank in finding.ranks:
        role = CULPRIT if rank in blamed else OTHER
        end = run.ranks[rank] if run.ranks else Rank(rank, "unknown")
        has_raised = end.end == "raised"
        wait, issue = waiting.get(RankOrThread(rank)), last.get(rank)
        if wait is not None and wait.site is not None and finding.code != "rank_error":
            yield _rank_in_wait(run, wait, role)
        elif issue is not None and not (has_raised and first is not None):
            call = run.issued_call(issue)
            then = {"returned": ", then returned", "raised": ", then raised"}.get(end.end, "")
            yield _RankAtLine(
                role, f"last call {_call_name(run, call)}{then}", RankOrThread(rank), call.site, call.caller
            )
        elif first is not None:
            yield _RankAtLine(role, f"raised {end.text}" if has_raised and end.text else "", RankOrThread(rank), first)


def _rank_in_wait(run: Run, waiting: Waiting, role: str) -> _RankAtLine:
    """Return the line and text of a waiting rank or thread: at its own call, or at what else it waits for."""
    issues = run.slots[waiting.slots[0]].issues if waiting.slots else ()
    if not issues:
        return _RankAtLine(role, f"waiting for {waiting.what}", waiting.who, waiting.site)
    call = run.issued_call(next((issue for issue in issues if run.events[issue].rank == waiting.who.rank), issues[0]))
    more = f" or {len(waiting.slots) - 1} more" if len(waiting.slots) > 1 else ""
    name = _describe_call(f"{_call_name(run, call)}{more}", "", call)
    return _RankAtLine(role, f"waiting in {name}", waiting.who, waiting.site, call.caller)


def _call_name(run: Run, call: Call) -> str:
    """Return the name of a call; for a message with its peer, and with tag and group if the run has several."""
    words = f"{call.operation} #{call.sequence}"
    if call.peer is not None:
        words += " from " if call.operation == "recv" else " to "
        words += "any rank" if call.peer < 0 else f"rank {call.peer}"
    if any(each.tag for each in run.calls) and call.is_point_to_point:
        words += f", tag {call.tag}"
    return words if len({each.group for each in run.calls}) == 1 else f'{words}, group "{call.group}"'


def _last_calls(run: Run) -> dict[int, int]:
    return {
        event.rank: index
        for index, event in enumerate(run.events)
        if event.kind is EventKind.ISSUE and event.call is not None and not event.thread
    }
