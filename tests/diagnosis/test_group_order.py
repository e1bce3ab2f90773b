"""The order of groups, from calls alone."""

import time

from ddpsim.simulator.calls import Call, Signature, Site
from ddpsim.simulator.diagnosis.hazards import find_group_order

ONE = Signature("all_reduce", ((1,),), "float32", "SUM")


def calls(orders):
    """`orders` gives each rank's groups, in the order in which it calls them."""
    issued = []
    for rank, groups in enumerate(orders):
        counts = {}
        for index, group in enumerate(groups):
            issued.append(Call(rank, group, counts.get(group, 0), ONE, Site("train.py", index + 1, "f")))
            counts[group] = counts.get(group, 0) + 1
    return [(call, call.rank) for call in issued]


def test_equal_orders_are_none():
    assert find_group_order(calls(["abab", "abab", "abab"])) is None
    assert find_group_order(calls(["aa", "bb", "ab"])) is None
    assert find_group_order([]) is None


def test_the_minority_is_named():
    finding = find_group_order(calls(["aabba", "aabba", "abaab", "aabba"]))
    assert finding.code == "hazard.group_order"
    assert finding.ranks == (2,)
    assert 'all_reduce #0 on "b", then all_reduce #1 on "a"' in finding.text
    assert finding.code.verdict.value == "pass"


def test_a_circle_of_three_groups():
    finding = find_group_order(calls(["ab", "bc", "ca"]))
    assert finding.ranks == (0, 1, 2)
    assert finding.summary == 'ranks use groups "a", "b", "c" in different orders'


def test_messages_and_making_groups_do_not_count():
    message = Signature("send", ((1,),), "float32")
    making = Signature("new_group", members=(0, 1))
    issued = calls(["ab", "ba"])
    for other in (message, making):
        changed = [(call._replace(signature=other) if call.rank else call, thread) for call, thread in issued]
        assert find_group_order(changed) is None


def test_many_ranks_on_a_mesh():
    size, width, rounds = 1024, 32, 4
    orders = [["all", f"row{rank // width}", f"column{rank % width}"] * rounds for rank in range(size)]
    start = time.process_time()
    assert find_group_order(calls(orders)) is None
    orders[500][4], orders[500][5] = orders[500][5], orders[500][4]
    assert find_group_order(calls(orders)) is None  # only this rank is in both: nobody can be in another order
    orders[500][3], orders[500][4] = orders[500][4], orders[500][3]
    finding = find_group_order(calls(orders))
    assert finding.ranks == (500,)
    assert time.process_time() - start < 10
