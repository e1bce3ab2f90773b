"""Finds where the paths of ranks part before a deadlock or a mismatch: an exception that was caught, a branch, a loop.

A failed execution is repeated with a tracer (`runtime/paths.py`), and the lines that each rank ran are compared. Paths
that part and meet again are of no interest if both sides made the same collectives in between; the first place where
they did not is the parting.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import NamedTuple

from ddpsim.simulator.calls import NOWHERE, Call, Phase, Site
from ddpsim.simulator.diagnosis.advice import Advice, Cause
from ddpsim.simulator.diagnosis.explain import shorten_list, shorten_text, values_with_ranks_text
from ddpsim.simulator.diagnosis.hazards import Noticed, NoticedKind
from ddpsim.simulator.diagnosis.rank_errors import MAY_FOLLOW
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.wording import LabelledLine, rank_list, ranks_by_value

_NEAREST, _FARTHEST = 32, 16_384
"""How many steps are searched at first, and at most, for the place where two paths meet again."""

_REPLACED = (
    Cause.RAN_OUT_OF_INPUT,
    Cause.OTHER_BRANCH,
    Cause.OTHER_FUNCTION,
    Cause.OTHER_TENSOR,
    Cause.OTHER_ARGUMENT,
    Cause.DECIDED_ALONE,
    Cause.LEFT_LOOP,
    Cause.STAYED_IN_LOOP,
    Cause.CIRCLE,
    Cause.RETURNED_EARLY,
    Cause.GROUP_DESTROYED,
    Cause.WRAPPED_ALONE,
)
"""Causes that fit many failures. A value that differs where the paths part says more."""

_COMPLETED = (
    Cause.SKIPPED_BACKWARD,
    Cause.EXTRA_FORWARD,
    Cause.FORWARD_ALONE,
    Cause.WRAPPERS_MIXED,
    Cause.UNUSED_ON_SOME_RANKS,
)
"""Causes that say what went wrong in DDP, and to which a note adds the line where the paths part."""


class PathStep(NamedTuple):
    """A line that a thread of a rank ran, or an exception that passed a line."""

    thread: str
    site: Site
    """The line; NOWHERE for the end of the program."""
    raised: str = ""
    values: tuple[tuple[str, str], ...] | None = None
    """For a line that can branch, the names in its condition, and their values as text; None for other lines."""
    round: tuple[tuple[str, str], ...] = ()
    """For the line of a `for` loop, its variables, and their values in the round before."""
    is_loop: bool = False
    """True for the line of a loop."""


_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")
"""Functions of their own before Python 3.12."""

_Path = Sequence[PathStep | Call]
_Key = tuple[object, ...]


class Parting(NamedTuple):
    """The place where the paths of two ranks part."""

    mine: _Path
    other: _Path
    at: tuple[int, int]
    """For both paths, the index of the first step after the parting."""
    until: tuple[int, int]
    """For both paths, the index of the first step that they have in common again, or their end."""


def name_parting(finding: Finding, noticed: Sequence[Noticed]) -> Finding:
    """Return a finding with the cause that the paths of the ranks show; the finding itself if they show none.

    `noticed` are the facts of the same execution, repeated with a tracer.
    """
    groups = {call.group for call in finding.calls if not call.is_point_to_point}
    paths = _paths_of_ranks(noticed, groups, finding.calls)
    ranks = [rank for rank in finding.ranks if rank in paths]
    others = [rank for rank in paths if rank not in ranks] or ranks[:1]
    if not groups or not finding.code.value.startswith(MAY_FOLLOW) or not others:
        return finding
    reference = paths[others[0]]
    unlike = finding.calls if finding.code.value.startswith("mismatch") else ()
    found = {
        rank: parting
        for rank in paths
        for thread in reference
        if rank != others[0]
        and (parting := find_parting(paths[rank].get(thread, ()), reference[thread], unlike)) is not None
    }
    blamed = [rank for rank in ranks if rank in found] or list(found)
    if not blamed:
        return finding
    first = found[min(blamed, key=lambda rank: found[rank].at[1])]
    who = [rank for rank, each in found.items() if each.other is first.other and each.at[1] == first.at[1]]
    rest = [rank for rank in paths if rank not in who and (rank not in found or found[rank].at[1] > first.at[1])]
    swapped = Parting(first.other, first.mine, first.at[::-1], first.until[::-1])
    caught = (
        _advise_left_out_backward(finding, paths)
        or _advise_exception(finding, first, who)
        or _advise_exception(finding, swapped, rest)
    )
    return caught or _advise_branch(finding, first, {rank: found[rank] for rank in who}, paths, rest)


def name_threads(finding: Finding, together: Iterable[tuple[int, str, set[str], str]]) -> Finding:
    """Return a mismatch, or calls of unlike lines, with the cause that two threads of a rank share the group, and
    an error of a rank with a note that they do; the finding itself if they do not."""
    if finding.code is Code.RANK_ERROR:  # which wrong values may have caused
        texts = (f"{text}: another rank may call them in another order" for *_, text in together)
        return replace(finding, lines=(*finding.lines, *(LabelledLine("note", text) for text in islice(texts, 1))))
    threads = {(call.group, call.thread) for call in finding.calls}
    is_known = finding_has_cause(finding, (Cause.CAUGHT, Cause.LOST_IN_THREAD))
    if finding.code.value.startswith(("mismatch", Code.HAZARD_CALL_SITE.value)) and not is_known:
        these = [each for each in together if threads.issuperset((each[1], name) for name in each[2])]
        ranks = tuple(sorted({rank for rank, *_ in these}))
        if not {*finding.ranks} <= {*ranks}:  # all may do the same, and one has not come to it
            ranks = tuple(sorted({call.rank for call in finding.calls}))
        for *_, text in these[:1]:
            return _with_advice(finding, Cause.THREADS_SHARE_GROUP.lines(fact=text), [], ranks)
    return finding


def find_parting(mine: _Path, other: _Path, unlike: Sequence[Call] = ()) -> Parting | None:
    """Return the first place where two paths part and make unequal collectives before they meet again; None if there
    is no such place, or a rank that did not end may still make the same ones.

    `unlike`: calls that were matched and do not agree. Of these, everything counts, and not the operation alone.
    """
    one, two = ([_key(step, unlike) for step in path] for path in (mine, other))
    for i, j, p, q in _detours(one, two):
        calls, others = ([key for key in keys if len(key) == 2] for keys in (one[i:p], two[j:q]))
        if calls != others:
            may_follow = (p == len(one) and _may_follow(one, calls, others)) or (
                q == len(two) and _may_follow(two, others, calls)
            )
            return None if may_follow else Parting(mine, other, (i, j), (p, q))
    return None


def _detours(one: Sequence[_Key], two: Sequence[_Key]) -> Iterator[tuple[int, int, int, int]]:
    """Yield where two paths part, for both the index of the first step after it, and where they meet again."""
    i = j = 0
    while i < len(one) and j < len(two):
        if one[i] == two[j]:
            i, j = i + 1, j + 1
        else:
            p, q = _meeting(one, i, two, j)
            yield i, j, p, q
            i, j = p, q


def _may_follow(path: Sequence[_Key], calls: Sequence[_Key], others: Sequence[_Key]) -> bool:
    """Return True if a rank that waits has made the first of the other's calls, and may make the rest later."""
    has_ended = path[-1] == _key(END) or (len(path[-1]) > 2 and bool(path[-1][-1]))
    return not has_ended and list(others[: len(calls)]) == list(calls)


def _meeting(one: Sequence[_Key], i: int, two: Sequence[_Key], j: int) -> tuple[int, int]:
    """Return the nearest indices from which two paths have steps in common; their ends if there are none.

    The same round of a loop comes first: neither path has then passed the last common step again. In the same function,
    one step is enough there.
    """
    ends = min(len(one), i + _FARTHEST), min(len(two), j + _FARTHEST)
    if i and j:
        in_round = _index(one, one[i - 1], i, ends[0]), _index(two, two[j - 1], j, ends[1])
        for length in (1, 2):
            if met := _nearest_meeting(one, i, two, j, in_round, length):
                return met
    return _nearest_meeting(one, i, two, j, ends, 2) or (len(one), len(two))


def _index(path: Sequence[_Key], key: _Key, start: int, end: int) -> int:
    return next((index for index in range(start, end) if path[index] == key), end)


def _nearest_meeting(
    one: Sequence[_Key], i: int, two: Sequence[_Key], j: int, ends: tuple[int, int], length: int
) -> tuple[int, int] | None:
    reach = _NEAREST
    while True:
        p_end, q_end = min(i + reach, ends[0] + 1 - length), min(j + reach, ends[1] + 1 - length)
        pairs: dict[tuple[_Key, ...], int] = {}
        for q in range(j, q_end):
            if length > 1 or two[q][:2] == one[i - 1][:2]:  # both paths may call other functions, each on its way
                pairs.setdefault(tuple(two[q : q + length]), q)
        met = [(p + q, p, q) for p in range(i, p_end) if (q := pairs.get(tuple(one[p : p + length]), -1)) >= 0]
        if met:
            return min(met)[1:]
        if i + reach >= ends[0] and j + reach >= ends[1]:
            return None
        reach *= 8


def _key(step: PathStep | Call, unlike: Sequence[Call] = ()) -> _Key:
    """Return what is compared of a step: values and messages may differ between ranks."""
    if isinstance(step, Call):
        if step in unlike:
            return step.group, f"{step.operation} {step.signature} {step.origin}"
        return step.group, f"{step.operation} {step.origin.phase is Phase.USER}"
    return step.site.path, step.site.function, step.site.line, step.raised.partition(":")[0]


END = PathStep("", NOWHERE)
"""The end of a program that returned."""


def _paths_of_ranks(
    noticed: Sequence[Noticed], groups: set[str], ends: Sequence[Call]
) -> dict[int, dict[str, list[PathStep | Call]]]:
    """Return, by rank and thread, the steps and the collectives on these groups, in order.

    How far a generator expression went, as in `all(...)`, is no step of its own: rounds would meet other rounds there.
    Nor is a call by which DDP rebuilds its buckets, unless it is one of the finding's, with which the paths end: the
    first forward that follows makes it, whatever its line.
    """
    paths: dict[int, dict[str, list[PathStep | Call]]] = {}
    for fact in noticed:
        if fact.kind is NoticedKind.PATH:
            rank, steps = fact.detail
            calls = [
                call
                for call in fact.calls
                if call.group in groups
                and not call.is_point_to_point
                and (call.origin.phase is not Phase.REBUILD or call in ends)
            ]
            for step in (*(each for each in steps if each.site.function != "<genexpr>"), *calls):
                path = paths.setdefault(rank, {}).setdefault(step.thread, [])
                if not path or step != path[-1]:  # rounds of a comprehension repeat its line
                    path.append(step)
    return dict(sorted(paths.items()))


def _advise_exception(finding: Finding, parting: Parting, who: Sequence[int]) -> Finding | None:
    """Return the finding if an exception that was caught made the paths part; None if there was none."""
    (i, j), q = parting.at, parting.until[1]
    missing = next((call for call in parting.other[j:q] if isinstance(call, Call)), None)
    if missing is None or (caught := _find_caught(parting)) is None:
        return None
    own, others = (list(map(_key, path)).count(_key(missing)) for path in (parting.mine[i:], parting.other[j:]))
    calls = f"without the {missing.title}" if own < others else "with other calls than those"
    step, text, went_on = caught
    if went_on:
        advice = Cause.CAUGHT.lines(rank_list(who), calls, text + went_on)
    elif step.thread:
        advice = Cause.LOST_IN_THREAD.lines(rank_list(who), missing.title, f'{text} in thread "{step.thread}"')
    else:
        return None
    return _with_advice(finding, advice, [step.site], tuple(who))


def _advise_left_out_backward(finding: Finding, paths: Mapping[int, Mapping[str, _Path]]) -> Finding | None:
    """Return the finding if one rank left out one backward, and its path differs, since it reduced last, only by a
    round of a loop that an exception ended; None if not."""
    if not finding_has_cause(finding, [Cause.SKIPPED_BACKWARD]):
        return None
    behind, *others, ahead = sorted(finding.calls, key=lambda call: call.origin.step or 0)
    steps = [call.origin.step or 0 for call in (behind, *others, ahead)]
    if steps[-2:] != [steps[0], steps[0] + 1]:
        return None
    mine, other = (paths.get(call.rank, {}).get(call.thread, ()) for call in (ahead, behind))
    last = max((index for index, step in enumerate(mine) if isinstance(step, Call) and step != ahead), default=-1)
    one, two = ([_key(step, finding.calls) for step in path] for path in (mine, other))
    since = [each for each in _detours(one, two) if each[0] > last]
    rounds = [(i, j, p, q) for i, j, p, q in since[:-1] if one[i - 1] in (*one[i:p], *two[j:q])]
    if len(rounds) != 1 or (mine[since[-1][0]], other[since[-1][1]]) != (ahead, behind):
        return None
    i, j, p, q = rounds[0]
    until = next((index for index in range(i, p) if len(one[index]) == 4 and one[index][3]), i)
    if not {*one[last + 1 : i]}.isdisjoint(one[i:until]):
        return None  # the next round had begun when it was raised
    if (caught := _find_caught(Parting(mine, other, (i, j), (p, q)))) is None:
        return None
    step, text, went_on = caught
    advice = Cause.LEFT_BY_EXCEPTION.lines(rank_list([ahead.rank]), f"step {steps[0]}", text + went_on)
    return _with_advice(finding, advice, [step.site], (ahead.rank,))


def _find_caught(parting: Parting) -> tuple[PathStep, str, str] | None:
    """Return the exception that made the paths part, with text on it and on where the thread went on, if it did; None
    if there was none."""
    (i, j), (p, q) = parting.at, parting.until
    step = next((step for step in parting.mine[i:p] if isinstance(step, PathStep) and step.raised), None)
    if step is None or any(_key(step) == _key(each) for each in parting.other[j:q]):
        return None
    following = (s for s in parting.mine[parting.mine.index(step, i) :] if isinstance(s, PathStep) and not s.raised)
    later = next(following, None)
    went_on = "" if later is None else "it returned" if later == END else f"it went on at {later.site}"
    text = f"raised {shorten_text(step.raised)} at {step.site}"
    return step, text, went_on and f", which did not end the program: {went_on}"


def _advise_branch(
    finding: Finding,
    parting: Parting,
    found: Mapping[int, Parting],
    paths: Mapping[int, Mapping[str, _Path]],
    rest: list[int],
) -> Finding:
    """Return the finding with the values that differ where the paths part; the finding itself if none are known.

    `found` has the partings of the ranks that part there from the `rest`, whose paths are alike so far.
    """
    (i, j), who = parting.at, list(found)
    if not finding_has_cause(finding, (*_REPLACED, *_COMPLETED)):
        return finding
    swapped = Parting(parting.other, parting.mine, parting.at[::-1], parting.until[::-1])
    for ranks, side in (who, parting), (rest, swapped):
        if (call := _reduction_alone(side)) is not None:
            fact = f"{call.title} at {call.location}, {call.origin}"
            return _with_advice(finding, Cause.REDUCED_ALONE.lines(rank_list(ranks), fact), [call.site])
    sides = f"{rank_list(who)} {_went(parting.mine[i:])}, {rank_list(rest)} {_went(parting.other[j:])}"
    if (last := _line_that_decides(parting)) is None:
        return _note_last_lines(finding, parting, sides)
    ways = {rank: paths[rank].get(last.thread, ()) for rank in sorted((*who, *rest))}
    own = {rank: each.mine[: each.at[0]] for rank, each in found.items()}
    last_steps, same_rounds = (_steps_at(last, ways, each, parting.other[:j]) for each in (own, {}))
    values = list(_differing({rank: step.values or () for rank, step in last_steps.items()}))
    number = sum(_key(step) == _key(last) for step in parting.other[:j])
    rounds = list(_differing({rank: step.round for rank, step in same_rounds.items()}, "was")) if number > 1 else []
    if _divides_rounds(last, ways, same_rounds):
        rounds = []
    sites = [last.site, *(s.site for s in (parting.mine[i], parting.other[j]) if s.site not in (NOWHERE, last.site))]
    completed = _with_note(finding, "; there ".join([f"from {last.site} {sides}", *values[:1]]))
    if finding_has_cause(finding, _COMPLETED):
        return completed
    is_told = any(isinstance(line, LabelledLine) and line.text.startswith("a tie") for line in finding.lines)
    is_tie = len(who) == len(rest) and not is_told
    notes = [LabelledLine("note", "a tie: either side may be wrong")] if is_tie else []
    before = next((step for step in reversed(parting.other[:j]) if isinstance(step, Call)), None)
    if before is not None and before.operation == "reduce":
        what = f"{before.title} at {before.site} has its result on rank {before.signature.root} only"
        notes.append(LabelledLine("note", f"{what}; elsewhere its tensor may hold anything"))
    if rounds:
        fact = f"{last.site} ({'; '.join((*rounds, *values))})"
        return _with_advice(finding, [*notes, *Cause.BEGAN_ELSEWHERE.lines(fact=fact)], sites)
    if values and not finding_has_cause(finding, [Cause.RAN_OUT_OF_INPUT]):
        fact = f"from {last.site} {sides}; there {'; '.join(values)}"
        return _with_advice(finding, [*notes, *Cause.PATHS_PART.lines(fact=fact)], sites)
    for ranks, staying, side in (who, rest, parting), (rest, who, swapped):
        if _leaves_loop(side, last) and not finding_has_cause(finding, [Cause.RAN_OUT_OF_INPUT]):
            fact = f"{rank_list(ranks)} left the loop at {last.site}, and {rank_list(staying)} went on in it"
            return _with_advice(finding, [*notes, *Cause.PATHS_PART.lines(fact=fact)], sites)
    for ranks, side in (who, parting), (rest, swapped):
        stays = any(_key(step) == _key(last) for step in side.mine[side.at[0] :])
        is_alone = _is_branch_alone(side, last) or finding_has_cause(finding, [Cause.WRAPPED_ALONE])
        if is_alone and (stays or not finding_has_cause(finding, [Cause.RAN_OUT_OF_INPUT])):
            advice = Cause.BRANCH_ALONE.lines(rank_list(ranks), f"from {last.site} {sides}")
            return _with_advice(finding, [*notes, *advice], sites)
    if finding_has_cause(finding, [Cause.OTHER_BRANCH, Cause.OTHER_FUNCTION, Cause.OTHER_TENSOR, Cause.OTHER_ARGUMENT]):
        return _with_advice(finding, [*notes, *Cause.PATHS_PART.lines(fact=f"from {last.site} {sides}")], sites)
    return completed if finding_has_cause(finding, [Cause.RAN_OUT_OF_INPUT]) and not last.is_loop else finding


def _note_last_lines(finding: Finding, parting: Parting, sides: str) -> Finding:
    """Return a finding with a note of the last line before paths part, where none is known to decide; for one about the
    arguments of a call, of the lines where they part and meet again since the calls before, if there are any."""
    mine, other, (i, j), _ = parting
    if not finding_has_cause(finding, [Cause.OTHER_TENSOR, Cause.OTHER_ARGUMENT]):
        own, theirs = (
            next((s for s in reversed(path) if isinstance(s, PathStep)), END) for path in (mine[:i], other[:j])
        )
        return _with_note(finding, f"after {own.site} {sides}") if _key(own) == _key(theirs) != _key(END) else finding
    one, two = ([_key(step, finding.calls) for step in path] for path in (mine, other))
    before = max((index for index in range(i) if isinstance(mine[index], Call)), default=-1)
    detours = [Parting(mine, other, (p, q), (m, n)) for p, q, m, n in _detours(one, two) if before < p < i]
    lines = dict.fromkeys(str(last.site) for each in detours if (last := _line_that_decides(each)) is not None)
    where = ", ".join(shorten_list([*lines]))
    text = f"since the calls before, the paths of the ranks part at {where} and meet again"
    return _with_note(finding, text) if lines else finding


def _line_that_decides(parting: Parting) -> PathStep | None:
    """Return the line that made the paths part, not one of a function that both have left; None if none can have."""
    (mine, other), (i, j) = parting[:2], parting.at
    functions = {s.site._replace(line=0) for s in (*mine[i : i + 1], *other[j : j + 1]) if isinstance(s, PathStep)}
    found = []
    for path in (mine[:i], other[:j]):
        steps = (step for step in reversed(path) if isinstance(step, PathStep))
        found.append(next((s for s in steps if len(functions) > 1 or s.site._replace(line=0) in functions), END))
    here = found[1].site
    is_inside = here._replace(line=0) in functions or here.function in _COMPREHENSIONS
    return found[1] if is_inside and _key(found[0]) == _key(found[1]) and found[1].values is not None else None


def _steps_at(
    line: PathStep, paths: Mapping[int, _Path], before: Mapping[int, _Path], reference: _Path
) -> dict[int, PathStep]:
    """Return the step of each rank at a line: the one that its path in `before` ends with, or that of as many rounds as
    the reference."""
    found = {}
    for rank, path in paths.items():
        number = sum(_key(step) == _key(line) for step in before.get(rank, reference))
        steps = [step for step in path if isinstance(step, PathStep) and _key(step) == _key(line)]
        if len(steps) >= number > 0:
            found[rank] = steps[number - 1]
    return found


def _divides_rounds(line: PathStep, paths: Mapping[int, _Path], steps: Mapping[int, PathStep]) -> bool:
    """Return True if each rank goes through a part of its own in the loop at a line: each n-th, or a block."""
    values = [int(value) for _, step in sorted(steps.items()) for _, value in step.round[:1]]
    if len(values) > 2 and len({b - a for a, b in pairwise(values)}) == 1:
        return True
    own = next(iter(paths.values()), ())
    rounds = [int(s.round[0][1]) for s in own if isinstance(s, PathStep) and s.round and _key(s) == _key(line)]
    return len(values) > 1 and {b - a for a, b in pairwise(rounds)} == {len(values)}


def _reduction_alone(side: Parting) -> Call | None:
    """Return the call if this side goes on with a reduction of DDP, and the other with a line of the program."""
    mine, other = side.mine[side.at[0] :][:1], side.other[side.at[1] :][:1]
    calls = [step for step in mine if isinstance(step, Call) and step.origin.phase is Phase.BUCKET]
    return next(iter(calls), None) if any(isinstance(step, PathStep) for step in other) else None


def _leaves_loop(side: Parting, last: PathStep) -> bool:
    """Return True if the last common line is that of a loop, and this side goes on after it, the other inside."""
    mine, other = (next(iter(path[at:]), END) for path, at in zip(side[:2], side.at, strict=True))
    if not last.is_loop or isinstance(other, Call):
        return False
    if last.site.function in _COMPREHENSIONS:
        steps = (step.site for step in reversed(side.mine[: side.at[0]]) if isinstance(step, PathStep))
        around = next(
            (site for site in steps if site._replace(function=last.site.function) == last.site != site), NOWHERE
        )
        return isinstance(mine, PathStep) and mine.site.function == around.function != other.site.function
    if other.site._replace(line=0) != last.site._replace(line=0):
        return False
    in_function = not isinstance(mine, Call) and mine.site._replace(line=0) == last.site._replace(line=0)
    return last.site < other.site and not (in_function and last.site < mine.site < other.site)


def _is_branch_alone(side: Parting, last: PathStep) -> bool:
    """Return True if this side goes on at a line that the other never ran, and the other at one that both have run, or
    that comes behind it: a branch ends before the lines that skip it."""
    (i, j), ran, other_ran = side.at, set(map(_key, side.mine)), set(map(_key, side.other))
    if i >= len(side.mine) or j >= len(side.other) or side.mine[i] == END or _key(side.mine[i]) in other_ran:
        return False
    lines = [step.site for step in (last, side.mine[i], side.other[j])]
    is_skipped = len({line._replace(line=0) for line in lines}) == 1 and lines[0] < lines[1] < lines[2]
    return is_skipped or _key(side.other[j]) in ran


def _differing(values: Mapping[int, Sequence[tuple[str, str]]], verb: str = "is") -> Iterator[str]:
    """Yield each name with its values, if they differ: `start is 2 on rank 0 against 0 on rank 1`. The rank itself is
    left out, and a flag that only rank 0 has."""
    for name in dict(next(iter(values.values()), ())):
        own = {rank: dict(each)[name] for rank, each in values.items() if name in dict(each)}
        is_rank = all(text == str(rank) for rank, text in own.items())
        is_flag = all(text in ("True", "False") for text in own.values())
        is_main = is_flag and len({text for rank, text in own.items() if rank != 0}) < 2
        if len(set(own.values())) > 1 and not is_rank and not is_main:
            yield f"{name} {verb} {values_with_ranks_text(ranks_by_value(own.items()))}"


def _went(steps: _Path) -> str:
    following = next((step for step in steps if isinstance(step, PathStep)), None)
    if following is not None:
        return "returned" if following == END else f"went on at {following.site}"
    calls = [f"to {step.title}" for step in steps if isinstance(step, Call)]
    return f"went on {calls[0]}" if calls else "ran no other line"


def finding_has_cause(finding: Finding, causes: Sequence[Advice[...]]) -> bool:
    """Return True if the cause of a finding is one of these rows of the table."""
    texts = [line.text for line in finding.lines if isinstance(line, LabelledLine) and line.label == "cause"]
    return any(cause.is_text(text) for cause in causes for text in texts)


def _with_note(finding: Finding, text: str) -> Finding:
    note = LabelledLine("note", f"a second run, with a tracer, shows: {text}")
    return replace(finding, lines=(*finding.lines, note))


def _with_advice(
    finding: Finding, advice: list[LabelledLine], sites: Sequence[Site], ranks: tuple[int, ...] = ()
) -> Finding:
    kept = [line for line in finding.lines if not (isinstance(line, LabelledLine) and line.label in {"cause", "try"})]
    note = LabelledLine("note", "the cause was found by running the program a second time, with a tracer")
    return replace(
        finding,
        ranks=ranks or finding.ranks,
        lines=(*kept, *advice, *[note] * bool(sites)),
        sites=tuple(dict.fromkeys((*finding.sites[:1], *sites, *finding.sites[1:]))),
    )
