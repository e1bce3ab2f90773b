"""What ranks tell each other in a round, and what follows from it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddpsim.ddp.join_protocol import (
    WIDE,
    WIDTH_WITHOUT_DETAILS,
    AnnouncedKind,
    ForwardKind,
    JoinAnnouncement,
    calls_since_latest_forward,
    needed_row_width,
    predict_calls,
    read_round,
)
from tests.kit.rows import rows

announcements = st.builds(
    JoinAnnouncement,
    st.sampled_from(AnnouncedKind),
    st.integers(0, 9),
    st.integers(0, 999),
    st.integers(0, 10**6),
    st.lists(st.integers(-1, 10**9), max_size=100).map(tuple),
)


@given(announcements)
def test_a_row_says_everything_if_it_is_wide_enough(call):
    width = needed_row_width([call.encode(WIDTH_WITHOUT_DETAILS)])
    assert JoinAnnouncement.decode(call.encode(width)) == call
    assert JoinAnnouncement.decode(call.encode(width + 3)) == call


@given(announcements, st.sampled_from([WIDTH_WITHOUT_DETAILS, WIDE]))
def test_a_row_that_is_too_narrow_says_how_wide_it_has_to_be(call, width):
    row = call.encode(width)
    assert len(row) == width
    assert needed_row_width([row, JoinAnnouncement(AnnouncedKind.JOINED).encode(width)]) == WIDTH_WITHOUT_DETAILS + len(
        call.details
    )


def forward(kind=ForwardKind.SYNCHRONIZED, engine=0, samples=0):
    return JoinAnnouncement(AnnouncedKind.FORWARD, engine, kind, samples)


def bucket(number, engine=0):
    return JoinAnnouncement(AnnouncedKind.BUCKET, engine, number)


def collective(*details):
    return JoinAnnouncement(AnnouncedKind.COLLECTIVE, details=details)


JOINED, FAILED = JoinAnnouncement(AnnouncedKind.JOINED), JoinAnnouncement(AnnouncedKind.FAILED)


def test_ranks_with_input_and_their_samples():
    held = read_round([forward(samples=4), JOINED, forward(samples=2)], members=range(3))
    assert held.present == (0, 2)
    assert held.samples == (4, 0, 2)
    assert held.call == forward(samples=4)
    assert (held.failed, held.disagreement) == ((), None)


def test_nobody_has_input():
    held = read_round([JOINED, JOINED], members=range(2))
    assert (held.present, held.call, held.disagreement) == ((), None, None)


def test_a_rank_that_leaves_is_not_present():
    held = read_round([JOINED, FAILED, bucket(0)], members=range(3))
    assert (held.present, held.failed) == ((2,), (1,))


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


def test_samples_may_differ():
    assert read_round([forward(samples=1), forward(samples=5)], members=range(2)).disagreement is None


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


@given(
    st.lists(st.sampled_from([bucket(0), bucket(1), LOSS]), max_size=6),
    st.integers(1, 4),
    st.data(),
)
def test_iterations_that_repeat_are_foreseen(calls, times, data):
    done = data.draw(st.integers(0, len(calls)))
    assert predict_calls([A, *calls] * times + [A, *calls[:done]]) == calls[done:]


def test_the_latest_forward():
    assert calls_since_latest_forward([A, bucket(0), B, LOSS]) == [B, LOSS]
    assert calls_since_latest_forward([LOSS]) == []
