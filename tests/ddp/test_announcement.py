"""What ranks tell each other in a round, and what follows from it."""

from __future__ import annotations

from ddpsim.ddp.join_protocol import (
    AnnouncedKind,
    ForwardKind,
    JoinAnnouncement,
    calls_since_latest_forward,
    predict_calls,
    read_round,
)
from tests.kit.rows import rows


def forward(kind=ForwardKind.SYNCHRONIZED, engine=0):
    return JoinAnnouncement(AnnouncedKind.FORWARD, engine, kind)


def bucket(number, engine=0):
    return JoinAnnouncement(AnnouncedKind.BUCKET, engine, number)


def collective(*details):
    return JoinAnnouncement(AnnouncedKind.COLLECTIVE, details=details)


JOINED = JoinAnnouncement(AnnouncedKind.JOINED)


def test_nobody_has_input():
    held = read_round([JOINED, JOINED], members=range(2))
    assert (held.present, held.call, held.disagreement) == ((), None, None)


@rows(
    ("one", "other", "words"),
    [
        (
            forward(),
            forward(ForwardKind.LOCAL),
            ("a forward that synchronizes gradients", "a forward inside no_sync"),
        ),
        (
            forward(ForwardKind.EVALUATION),
            forward(ForwardKind.EVALUATION, engine=1),
            ("a forward without gradients", "a forward without gradients of model 1"),
        ),
        (bucket(0), bucket(1), ("reduces bucket 0", "reduces bucket 1")),
        (
            bucket(2, engine=1),
            JoinAnnouncement(AnnouncedKind.END),
            ("reduces bucket 2 of model 1", "ends its iteration"),
        ),
        (
            JoinAnnouncement(AnnouncedKind.USED_MAP),
            JoinAnnouncement(AnnouncedKind.REBUILD),
            ("reduces the map of used parameters", "agrees on the order of the buckets"),
        ),
        (
            collective(1, 2),
            JoinAnnouncement(AnnouncedKind.UNANSWERABLE_COLLECTIVE),
            ("calls <1, 2>", "calls what joined ranks cannot take part in"),
        ),
        (collective(1), collective(2), ("calls <1>", "calls <2>")),
    ],
)
def test_disagreement_in_words(one, other, words):
    held = read_round(
        [one, JOINED, other, one],
        members=(4, 5, 6, 7),
        describe=lambda details: f"<{', '.join(map(str, details))}>",
    )
    assert held.call is None
    assert held.disagreement == f"ranks 4, 7: {words[0]}; rank 6: {words[1]}"


def test_calls_that_cannot_be_shadowed_agree():
    send, receive = (JoinAnnouncement(AnnouncedKind.UNANSWERABLE_COLLECTIVE, details=(index,)) for index in (0, 1))
    assert read_round([send, receive, JOINED], members=range(3)).call == send


# What is expected of a rank that leaves.

A, B, LOSS = forward(engine=0), forward(engine=1), collective(7)


@rows(
    ("log", "expected"),
    [
        ([], None),
        ([A], None),
        ([A, bucket(0), LOSS], None),
        ([A, bucket(0), bucket(1), LOSS, A], [bucket(0), bucket(1), LOSS]),
        ([A, bucket(0), bucket(1), LOSS, A, bucket(0)], [bucket(1), LOSS]),
        ([A, bucket(0), LOSS, A, bucket(0), LOSS], []),
        ([A, bucket(0), A, bucket(1)], None),  # the first time it goes this way
        ([LOSS, A, LOSS, A], [LOSS]),
        ([A, LOSS, LOSS, A, LOSS], [LOSS]),
        ([A, B, bucket(0, 1), bucket(0), A], []),
        ([A, B, bucket(0, 1), bucket(0), A, B], [bucket(0, 1), bucket(0)]),
        ([A, LOSS, A, bucket(0), A], None),  # once so, once otherwise
        ([A, bucket(0), LOSS, A, bucket(0), A, bucket(0)], None),  # now and then a call more
        ([A, bucket(0), LOSS, A, bucket(0), A, bucket(0), LOSS, A, bucket(0)], []),  # every second time
        ([A, A, bucket(0), A, A, bucket(0), A], []),  # the first of two forwards: the same past
        ([A, A, bucket(0), A, A, bucket(0), A, A], [bucket(0)]),
    ],
)
def test_what_follows_up_to_the_next_forward(log, expected):
    assert predict_calls(log) == expected


def test_the_latest_forward():
    assert calls_since_latest_forward([A, bucket(0), B, LOSS]) == [B, LOSS]
    assert calls_since_latest_forward([LOSS]) == []
