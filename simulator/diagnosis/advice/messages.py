"""Causes and advice for findings about groups, the store, and send and receive (deadlock.*, mismatch.*)."""

from __future__ import annotations

from ddpsim.simulator.diagnosis.advice.facts import Breaks, Fact, Made, Nothing, Ranks, RanksAndFact, about


class Messages:
    """Causes and advice for findings about groups, the store, and send and receive (deadlock.*, mismatch.*)."""

    OTHER_MEMBERS = about(Ranks)(
        "{who} gave other members for the same group, or {has} created more or fewer groups before; groups are matched"
        " by the number of groups created so far",
        "let every rank create the same groups, with the same members, in the same order",
    )
    GROUP_NOT_CREATED = about(Ranks)(
        "creating a group needs all its members at the same time, and {who} did not take part",
        "create all groups on every rank, in one order, before anything else communicates",
    )
    GROUPS_IN_OTHER_ORDER = about(Fact)(
        "the ranks call groups {fact} in different orders",
        "let every rank use its groups in one global order",
    )
    LEFT_BEHIND = about(Ranks)(
        "{who} made the call, did not wait for it, and ended before the ranks had connected",
        "wait for the work before the rank ends",
    )
    STREAMS_CROSS = about(Fact)(
        "this backend may run the calls of a rank one after another, and {fact}",
        "issue calls that meet in one order on every rank; use batch_isend_irecv for messages in both directions",
    )
    GROUPS_IN_A_RING = about(Fact)(
        "the ranks begin with different groups of {fact}, and each waits for a rank that began with another group",
        "let all ranks use their groups in one global order, for example the order in which they were created",
    )
    KEY_NEVER_SET = about(Nothing)(
        "no rank that still runs will set the key",
        "set the key on another rank before it is waited for",
    )
    KEYS_NOT_IN_TIME = about(RanksAndFact)(
        "{who} waited for store keys; no rank had set {fact} in time",
        "look at the rank that should set it: it may be late, or have taken another path; increase the timeout of the "
        "wait if the rank is only slow",
    )
    KEYS_IN_A_CIRCLE = about(Nothing)(
        "each rank of the cycle waits for a store key that another rank may set only after its own wait",
        "let every rank set its keys before it waits for those of others",
    )
    SENDS_FIRST = about(Nothing)(
        "every rank of the cycle sends before it receives, and a send waits for its recv",
        "order the calls by the parity of the rank, or pass both to batch_isend_irecv",
    )
    RECEIVES_FIRST = about(Nothing)(
        "every rank of the cycle receives before it sends",
        "let one rank send first, or pass both calls to batch_isend_irecv",
    )
    LOOPS_OF_MESSAGES_DIFFER = about(Breaks)(
        "{who} reached {operation} at {site} {fact}, and {usual}: one of two loops is longer than the other (another "
        "number of micro-batches, for example), or one of them takes a branch",
        "run the loops of both sides equally often: take the number from one place, or send it first",
    )
    NOTHING_SENT = about(Ranks)(
        "none of {who} sent the message that would have been received, and all have returned",
        "receive as many messages as are sent",
    )
    UNPAIRED_MESSAGE = about(Made)(
        "{who} returned without the matching {operation}, or the other side made one message too many",
        "give every send one recv with the same peer, group and tag",
    )
    ODD_PEER = about(Breaks)(
        "{who} made {operation} with {fact} at {site}; all other calls of that line suggest {usual}. A message only "
        "meets one between the two ranks that both sides name",
        "check how {site} computes the peer on {who}; the other waits may only be a consequence",
    )
    ODD_PARTNER = about(Breaks)(
        "{who} made {operation} at {site} with {fact}, which exchanged no other message with it and has returned, "
        "while {usual} waits for {who} with the same tag",
        "check how {site} computes the peer on {who}: {usual} may be the right one",
    )
    ODD_TAG = about(Breaks)(
        "{who} made {operation} with {fact} at {site}; all other calls of that line suggest {usual}. A message only "
        "meets one with the same tag",
        "check how {site} computes the tag on {who}; the other waits may only be a consequence",
    )
    ODD_FOLLOWER = about(Breaks)(
        "{who} made {operation} at {site} with {fact}, a sequence seen nowhere else: otherwise {usual} follows. This "
        "message is wrong, or one before it was left out or made twice",
        "check how {site} computes this on {who}; the other waits may only be a consequence",
    )
    ODD_ORDER = about(Breaks)(
        "{who} made {operation} at {site} after the one at {fact}, where {usual} follows everywhere else: the rank "
        "left a message out, made one twice, or changed the order",
        "let {who} make the messages of these lines as the other ranks do; the other waits may only be a consequence",
    )
    ODD_COUNT = about(Breaks)(
        "{who} made {fact} messages, the last of them {operation} at {site}; every other rank that ran the same lines "
        "and returned made {usual}",
        "let {who} make as many messages in these lines as the others; the other waits may only be a consequence",
    )
    ODD_COUNT_AT_LINE = about(Breaks)(
        "{who} reached {site} {fact} times, and its {operation} there has no partner; every other rank that reached "
        "the line did so {usual} times, and has returned",
        "let {who} reach that line as often as the others",
    )
    MESSAGES_MISS_EACH_OTHER = about(Nothing)(
        "one rank sends and the other receives, but with different tags, or in different groups",
        "give both sides of a message the same tag and group",
    )
    OTHER_MESSAGE = about(Fact)(
        "messages are matched in the order in which they are sent, and this one does not fit the tensor that receives "
        "it",
        "receive in the order of the sends, with the same {fact}; use tags, or send the size first",
    )
    TAGS_IGNORED = about(Nothing)(
        "this backend ignores tags: messages between two ranks are matched in the order in which they are issued",
        "receive in the order of the sends, or use a separate group for messages of another kind",
    )
