"""Messages meet by source, destination and tag, in the order they were issued (MPI standard, section 3.5)."""

from ddpsim.simulator.calls import ANY_SOURCE, NOWHERE, Call, Signature
from ddpsim.simulator.matching.slots import UnmatchedMessages


def send(rank, to, number=0, tag=0):
    return Call(rank, "g", number, Signature("send"), NOWHERE, peer=to, tag=tag)


def receive(rank, source, number=0, tag=0):
    return Call(rank, "g", number, Signature("recv"), NOWHERE, peer=source, tag=tag)


def test_a_message_goes_to_the_first_receive_that_accepts_it():
    table = UnmatchedMessages()
    from_two, from_any, from_one = receive(0, 2, 0), receive(0, ANY_SOURCE, 1), receive(0, 1, 2)
    for call in (from_two, from_any, from_one):
        table.post_receive(call)
    assert table.post_send(send(1, 0, 0)) is from_any
    assert table.post_send(send(1, 0, 1)) is from_one
    assert table.post_send(send(2, 0)) is from_two
    assert table.open_calls() == []


def test_messages_of_one_sender_stay_in_order():
    table = UnmatchedMessages()
    first, second = send(1, 0, 0), send(1, 0, 1)
    assert table.post_send(first) is None
    assert table.post_send(second) is None
    assert table.waiting_sends(receive(0, 1)) == [first]
    table.remove_send(first)
    assert table.waiting_sends(receive(0, 1)) == [second]


def test_a_receive_from_any_source_sees_the_oldest_message_of_each_sender_by_rank():
    table = UnmatchedMessages()
    two, one, later = send(2, 0), send(1, 0), send(2, 0, 1)
    for call in (two, one, later):
        table.post_send(call)
    assert table.waiting_sends(receive(0, ANY_SOURCE)) == [one, two]


def test_another_tag_or_destination_does_not_match():
    table = UnmatchedMessages()
    table.post_receive(receive(0, 1, tag=5))
    assert table.post_send(send(1, 0, tag=6)) is None
    assert table.post_send(send(1, 2, tag=5)) is None
    assert table.waiting_sends(receive(0, 1, tag=5)) == []
