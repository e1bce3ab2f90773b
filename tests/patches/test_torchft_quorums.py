"""Quorums and recoveries, worked out by hand; the situations are those of the tests in torchft's lighthouse.rs and
manager.rs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from ddpsim.simulator.patches.torchft.quorums import (
    Joined,
    Member,
    Rules,
    compute_quorum,
    next_quorum_id,
    quorum_result,
)

PATIENT = Rules(min_replicas=1, join_timeout=3600.0)


def quorum_of(
    asking: str,
    heartbeats: dict[str, float],
    previous: str | None = None,
    rules: Rules = PATIENT,
    *,
    now: float = 0.0,
    shrinks: bool = False,
) -> str | None:
    """The names of the members, each a letter; all ask at time 0."""
    joined = {name: Joined(0.0, Member(name, step=1, shrink_only=shrinks)) for name in asking}
    before = None if previous is None else [Member(name) for name in previous]
    members = compute_quorum(now, joined, heartbeats, before, rules)
    return None if members is None else "".join(each.replica_id for each in members)


def alive(names: Iterable[str], at: float = 0.0) -> dict[str, float]:
    return dict.fromkeys(names, at)


@pytest.mark.parametrize(
    ("asking", "heartbeats", "now", "expected"),
    [
        ("", {}, 0.0, None),
        ("ba", alive("ab"), 0.0, "ab"),
        ("ab", alive("abc"), 0.0, None),
        ("ab", alive("abc", 3599.0), 3599.0, None),
        ("ab", alive("abc", 3600.0), 3600.0, "ab"),
    ],
)
def test_a_replica_that_lives_and_does_not_ask_is_waited_for_until_the_join_timeout(
    asking: str, heartbeats: dict[str, float], now: float, expected: str | None
) -> None:
    assert quorum_of(asking, heartbeats, now=now) == expected


def test_the_join_timeout_begins_with_the_first_that_asks() -> None:
    joined = {"a": Joined(0.0, Member("a")), "b": Joined(0.9, Member("b"))}
    rules, heartbeats = Rules(1, join_timeout=1.0), alive("abc", 1.0)
    assert compute_quorum(0.99, joined, heartbeats, None, rules) is None
    assert compute_quorum(1.0, joined, heartbeats, None, rules) is not None


def test_a_replica_whose_heartbeat_is_old_does_not_count() -> None:
    rules = Rules(min_replicas=1, join_timeout=0.0)
    assert quorum_of("a", alive("a"), None, rules, now=4.99) == "a"
    assert quorum_of("a", alive("a"), None, rules, now=5.0) is None
    assert quorum_of("ab", {"a": 0.0, "b": 10.0}, None, rules, now=10.0) == "b"


def test_fewer_than_the_least_number_are_no_quorum() -> None:
    assert quorum_of("ab", alive("ab"), None, Rules(min_replicas=3)) is None
    assert quorum_of("abc", alive("abc"), None, Rules(min_replicas=3)) == "abc"


def test_more_than_half_of_those_that_live_must_ask_even_after_the_join_timeout() -> None:
    rules = Rules(min_replicas=1, join_timeout=0.0)
    assert quorum_of("a", alive("ab"), None, rules) is None
    assert quorum_of("ab", alive("abc"), None, rules) == "ab"
    assert quorum_of("ab", alive("abcd"), None, rules) is None


def test_where_all_of_the_previous_quorum_ask_nobody_is_waited_for() -> None:
    assert quorum_of("a", alive("ab")) is None
    assert quorum_of("a", alive("ab"), previous="a") == "a"
    assert quorum_of("ab", alive("ab"), previous="a") == "ab"
    assert quorum_of("a", alive("ab"), previous="ab") is None
    assert quorum_of("a", alive("a"), "a", Rules(min_replicas=2)) == "a"  # it may be smaller than the least number


def test_one_that_only_shrinks_keeps_new_replicas_out() -> None:
    assert quorum_of("ac", alive("ac"), previous="ab", shrinks=True) == "a"
    assert quorum_of("ac", alive("ac"), previous="ab") == "ac"
    assert quorum_of("ac", alive("ac"), shrinks=True) == "ac"


def test_a_quorum_has_another_number_with_other_replicas_or_after_a_failed_commit() -> None:
    one, moved, failed = Member("1"), Member("1", "changed", "changed", step=1000), Member("1", commit_failures=1)
    assert next_quorum_id(0, [one], None) == 1
    assert next_quorum_id(1, [moved], [one]) == 1
    assert next_quorum_id(1, [Member("2")], [one]) == 2
    assert next_quorum_id(1, [failed], [one]) == 2
    assert next_quorum_id(1, [failed, Member("2")], [one]) == 2


def result_of(replica: int, group_rank: int, steps: list[int], *, init_sync: bool = True) -> dict[str, Any]:
    members = [Member(f"r{at}", f"addr{at}", f"store{at}", step) for at, step in enumerate(steps)]
    return quorum_result(f"r{replica}", group_rank, 7, members[::-1], init_sync=init_sync)


def test_in_the_first_step_all_get_the_model_of_one_and_each_rank_that_of_another_replica() -> None:
    first, second = result_of(0, 0, [0, 0]), result_of(1, 0, [0, 0])
    assert first == {
        "quorum_id": 7,
        "replica_rank": 0,
        "replica_world_size": 2,
        "recover_src_manager_address": "",
        "recover_src_replica_rank": None,
        "recover_dst_replica_ranks": [1],
        "store_address": "store0",
        "max_step": 0,
        "max_replica_rank": 0,
        "max_world_size": 2,
        "heal": False,
        "commit_failures": 0,
        "replica_ids": ["r0", "r1"],
    }
    assert (second["heal"], second["recover_src_replica_rank"], second["recover_dst_replica_ranks"]) == (True, 0, [])
    assert second["recover_src_manager_address"] == "addr0"
    of_rank_1 = result_of(1, 1, [0, 0])
    assert (of_rank_1["heal"], of_rank_1["recover_dst_replica_ranks"]) == (False, [0])
    assert of_rank_1["store_address"] == "store1"


@pytest.mark.parametrize(
    ("group_rank", "sources", "targets"),
    [
        (0, {0: 1, 2: 3, 4: 1}, {1: [0, 4], 3: [2]}),
        (1, {0: 3, 2: 1, 4: 3}, {1: [2], 3: [0, 4]}),
    ],
)
def test_those_behind_recover_from_those_ahead_in_turn(
    group_rank: int, sources: dict[int, int], targets: dict[int, list[int]]
) -> None:
    for replica in range(5):
        found = result_of(replica, group_rank, [0, 1, 0, 1, 0])
        assert found["recover_src_replica_rank"] == sources.get(replica)
        assert found["heal"] is (replica in sources)
        assert found["recover_dst_replica_ranks"] == targets.get(replica, [])
        assert (found["max_step"], found["max_world_size"]) == (1, 2)
        assert found["max_replica_rank"] == {1: 0, 3: 1}.get(replica)


def test_without_init_sync_only_those_behind_recover() -> None:
    assert not result_of(1, 0, [0, 0], init_sync=False)["heal"]
    assert result_of(1, 0, [1, 0], init_sync=False)["heal"]


def test_the_most_failed_commits_of_all_count() -> None:
    members = [Member("r0"), Member("r1", commit_failures=2)]
    assert quorum_result("r0", 0, 1, members, init_sync=True)["commit_failures"] == 2
