"""Causes: groups, the store, messages (deadlock.*, mismatch.*)."""

from __future__ import annotations

from ddpsim.simulator.diagnosis.advice.facts import Breaks, Fact, Made, Nothing, Ranks, Told, about


class Messages:
    """Groups, the store, messages (deadlock.*, mismatch.*)."""

    OTHER_MEMBERS = about(Ranks)(
        "{who} named other members for the same group, or {has} made more or fewer groups before, by whose number "
        "groups are known",
        "let every rank create the same groups, with the same members, in the same order",
    )
    GROUP_NOT_CREATED = about(Ranks)(
        "creating a group takes all its members at once, and {who} did not come to it",
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
        "issue calls that meet in one order on every rank, messages that go both ways by batch_isend_irecv",
    )
    GROUPS_IN_A_RING = about(Fact)(
        "the ranks begin with different ones of groups {fact}, and each waits for one that begins elsewhere",
        "let every rank use its groups in one global order, for instance that in which they were made",
    )
    KEY_NEVER_SET = about(Nothing)(
        "nobody who still runs will set the key",
        "set the key on another rank before it is waited for",
    )
    KEYS_NOT_IN_TIME = about(Told)(
        "{who} waited for store keys of which nobody had set {fact} in time",
        "look at the rank that is to set it: it may be late, or have gone another way; give the wait a longer timeout "
        "if it only takes longer",
    )
    KEYS_IN_A_CIRCLE = about(Nothing)(
        "each rank of the cycle waits for a store key that another one may set only after its own wait",
        "let every rank set its keys before it waits for those of others",
    )
    SENDS_FIRST = about(Nothing)(
        "every rank of the cycle sends before it receives, and a send waits for its recv",
        "order the calls by the parity of the rank, or give both to batch_isend_irecv",
    )
    RECEIVES_FIRST = about(Nothing)(
        "every rank of the cycle receives before it sends",
        "let one rank send first, or give both calls to batch_isend_irecv",
    )
    LOOPS_OF_MESSAGES_DIFFER = about(Breaks)(
        "{who} came to {operation} at {site} {fact}, and {usual}: one of two loops is longer than the other, as of "
        "another number of micro-batches, or one of them takes a branch",
        "go through the loops of both sides equally often: take the number from one place, or send it first",
    )
    NOTHING_SENT = about(Ranks)(
        "none of {who} sent what would have been received, and all have returned",
        "receive as many messages as are sent",
    )
    UNPAIRED_MESSAGE = about(Made)(
        "{who} returned without the matching {operation}, unless there is one message too many on the other side",
        "give every send one recv with the same peer, group and tag",
    )
    ODD_PEER = about(Breaks)(
        "{who} made {operation} with {fact} at {site}, where it would be {usual} if it were as all other calls of that "
        "line, and messages meet between the two ranks that they name only",
        "look how {site} works out the rank on {who}; what else waits may only follow from it",
    )
    ODD_PARTNER = about(Breaks)(
        "{who} made {operation} at {site} with {fact}, which exchanged no other message with it and has returned, "
        "while {usual} waits for {who} with the same tag",
        "look how {site} works out the rank on {who}: it may have meant {usual}",
    )
    ODD_TAG = about(Breaks)(
        "{who} made {operation} with {fact} at {site}, where it would be {usual} if it were as all other calls of that "
        "line, and messages meet under one tag only",
        "look how {site} works out the tag on {who}; what else waits may only follow from it",
    )
    ODD_FOLLOWER = about(Breaks)(
        "{who} made {operation} at {site} with {fact}, which is so nowhere else: otherwise {usual} follows; it is "
        "wrong itself, or a message before it was left out or made twice",
        "look how {site} works this out on {who}; what else waits may only follow from it",
    )
    ODD_ORDER = about(Breaks)(
        "{who} made {operation} at {site} after that at {fact}, where {usual} follows everywhere else: it left a "
        "message out, made one twice or in another order",
        "let {who} make the messages of these lines as the others do; what else waits may only follow from it",
    )
    ODD_COUNT = about(Breaks)(
        "{who} made {fact} messages, {operation} at {site} the last, and each other rank that came to the same lines "
        "and returned made {usual}",
        "let {who} make as many messages in these lines as the others; what else waits may only follow from it",
    )
    ODD_COUNT_AT_LINE = about(Breaks)(
        "{who} came to {site} {fact} times, and its {operation} there has no other side; each other rank that came "
        "there did so {usual} times, and has returned",
        "let {who} come there as often as the others",
    )
    MESSAGES_MISS_EACH_OTHER = about(Nothing)(
        "one rank sends and the other receives, but under another tag, or in another group",
        "give both sides of a message the same tag and group",
    )
    OTHER_MESSAGE = about(Fact)(
        "messages meet in the order in which they are sent, and this one does not fit the tensor it is received into",
        "receive in the order of the sends, with the same {fact}; give messages tags, or send the size first",
    )
    TAGS_IGNORED = about(Nothing)(
        "this backend does not see tags: messages between two ranks meet in the order in which they are issued",
        "receive in the order of the sends, or give messages of another kind a group of their own",
    )
