"""The virtual clock moves to the next alarm, and only there."""

from ddpsim.simulator.clock import VirtualClock


def test_alarms_ring_in_order_of_time():
    clock = VirtualClock()
    clock.set_alarm(0, 2.0)
    clock.set_alarm(1, 1.0)
    assert clock.advance_to_next_alarm() == [1]
    assert clock.now == 1.0
    assert clock.advance_to_next_alarm() == [0]
    assert clock.now == 2.0
    assert clock.advance_to_next_alarm() == []
    assert clock.now == 2.0


def test_alarms_of_one_moment_ring_together_in_the_order_they_were_set():
    clock = VirtualClock()
    clock.set_alarm(2, 1.0)
    clock.set_alarm(0, 1.0)
    clock.set_alarm(1, 1.5)
    assert clock.advance_to_next_alarm() == [2, 0]


def test_a_cancelled_or_replaced_alarm_does_not_ring():
    clock = VirtualClock()
    clock.set_alarm(0, 1.0)
    clock.set_alarm(0, 3.0)
    clock.set_alarm(1, 2.0)
    clock.cancel_alarm(1)
    assert clock.advance_to_next_alarm() == [0]
    assert clock.now == 3.0


def test_a_tick_makes_an_alarm_due():
    clock = VirtualClock()
    clock.set_alarm(0, 0.5)
    clock.add_seconds(0.25)
    assert not clock.has_due_alarm()
    clock.add_seconds(0.25)
    assert clock.has_due_alarm()
    assert clock.advance_to_next_alarm() == [0]


def test_a_late_alarm_does_not_turn_time_back():
    clock = VirtualClock()
    clock.set_alarm(0, 0.5)
    clock.add_seconds(2.0)
    assert clock.advance_to_next_alarm() == [0]
    assert clock.now == 2.0
