"""The virtual clock moves to the next alarm, and only there."""

from ddpsim.simulator.clock import VirtualClock


def clock_with(*alarms):
    clock = VirtualClock()
    for rank, seconds in alarms:
        clock.set_alarm(rank, seconds)
    return clock


def test_alarms_of_one_moment_ring_together_in_the_order_they_were_set_but_for_one_that_is_replaced():
    clock = clock_with((1, 0.5), (2, 1.0), (0, 1.0), (1, 1.5))
    assert clock.advance_to_next_alarm() == [2, 0]
    assert (clock.advance_to_next_alarm(), clock.now) == ([1], 1.5)


def test_a_tick_makes_an_alarm_due_and_a_late_one_does_not_turn_time_back():
    clock = clock_with((0, 0.5))
    clock.add_seconds(0.25)
    assert not clock.has_due_alarm()
    clock.add_seconds(0.25)
    assert clock.has_due_alarm()
    clock.add_seconds(1.5)
    assert (clock.advance_to_next_alarm(), clock.now) == ([0], 2.0)
