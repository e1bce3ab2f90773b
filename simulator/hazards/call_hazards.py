"""What the calls of a run tell of hazards, whoever made them and wherever their tensors are. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.diagnosis import hazards
from ddpsim.simulator.diagnosis.ignored_tags import messages_exchanged
from ddpsim.simulator.diagnosis.tensor_names import NamedCall, TensorName, exchanged
from ddpsim.simulator.matching.agreement import branches_meet
from ddpsim.simulator.verdict import Finding


class CallHazards:
    """The calls of one execution."""

    def __init__(self, world_size: int) -> None:
        self.issued: list[tuple[Call, int]] = []
        """All calls, and the numbers of the threads that made them."""
        self._sites: dict[frozenset[Site], Sequence[Call]] = {}
        self._to_return = world_size
        self._named: dict[tuple[str, Site], dict[int, list[NamedCall]]] = {}
        """By group and line, then by rank."""

    def name(self, call: Call, name: TensorName) -> None:
        """What the program of a rank calls a tensor of a call."""
        self._named.setdefault((call.group, call.site), {}).setdefault(call.rank, []).append(NamedCall(call, name))

    def slot_filled(self, calls: Sequence[Call]) -> None:
        """Calls met and agree."""
        if branches_meet(calls) and not any(call.origin.shadow for call in calls):
            self._sites.setdefault(frozenset(call.site for call in calls), calls)

    def rank_ended(self) -> None:
        """The program of a rank returned."""
        self._to_return -= 1

    def findings(
        self,
        *,
        unwaited: Sequence[Call],
        changed: Sequence[Call],
        shared: Sequence[Call] = (),
        read: Sequence[hazards.ReadEarly] = (),
    ) -> Sequence[Finding]:
        """All hazards of a run: of the order of its calls and their lines, of calls that nobody waited for, and of
        those whose tensors were changed or read in flight."""
        have_returned = not self._to_return  # else there is worse to tell
        calls, issuers = [call for call, _ in self.issued], [issuer for _, issuer in self.issued]
        order = hazards.group_order(calls, issuers) if have_returned else None
        return (
            *([] if order is None else [order]),
            *hazards.unwaited_work(unwaited),
            *hazards.tensor_in_flight(changed),
            *hazards.tensors_shared(shared),
            *hazards.tensor_read(read),
            *(messages_exchanged(calls) if have_returned else ()),
            *([found for named in self._named.values() if (found := exchanged(named))] if have_returned else ()),
            *[hazards.call_site(calls) for calls in self._sites.values()],
        )
