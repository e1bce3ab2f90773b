"""The virtual clock moves to the next alarm, and only there."""

from ddpsim.simulator.clock import VirtualClock


def test_alarms_ring_in_order_of_time():
    clock = VirtualClock()
    clock.set_alarm(0, 2.0)
    clock.set_alarm(1, 1.0)
    assert clock.advance() == [1]
    assert clock.now == 1.0
    assert clock.advance() == [0]
    assert clock.now == 2.0
    assert clock.advance() == []
    assert clock.now == 2.0


def test_alarms_of_one_moment_ring_together_in_the_order_they_were_set():
    clock = VirtualClock()
    clock.set_alarm(2, 1.0)
    clock.set_alarm(0, 1.0)
    clock.set_alarm(1, 1.5)
    assert clock.advance() == [2, 0]


def test_a_cancelled_or_replaced_alarm_does_not_ring():
    clock = VirtualClock()
    clock.set_alarm(0, 1.0)
    clock.set_alarm(0, 3.0)
    clock.set_alarm(1, 2.0)
    clock.cancel(1)
    assert clock.advance() == [0]
    assert clock.now == 3.0


def test_a_tick_makes_an_alarm_due():
    clock = VirtualClock()
    clock.set_alarm(0, 0.5)
    clock.tick(0.25)
    assert not clock.due()
    clock.tick(0.25)
    assert clock.due()
    assert clock.advance() == [0]


def test_a_late_alarm_does_not_turn_time_back():
    clock = VirtualClock()
    clock.set_alarm(0, 0.5)
    clock.tick(2.0)
    assert clock.advance() == [0]
    assert clock.now == 2.0
