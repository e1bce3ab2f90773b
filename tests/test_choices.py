"""The schedule's text form: what is written is what is read, and what is damaged is refused in one line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsim.simulator.choices import RankSeeds, Schedule
from ddpsim.simulator.errors import ReplayError
from ddpsim.simulator.verdict import Code
from tests.kit.rows import rows


def without_zeros_at_the_end(choices):
    choices = list(choices)
    while choices and choices[-1] == 0:
        choices.pop()
    return tuple(choices)


@given(st.lists(st.integers(0, 5)), st.text())
def test_a_token_round_trips_but_for_zeros_at_the_end(choices, program):
    schedule = Schedule(tuple(choices), program)
    assert Schedule.parse(str(schedule), program=program) == Schedule(without_zeros_at_the_end(choices), program)


def test_long_runs_are_short():
    token = str(Schedule((0,) * 10_000 + (3,) + (1,) * 5, "p"))
    assert token.startswith("s1:0x10000.3.1x5:")


def test_a_schedule_of_defaults_only_is_zero():
    assert str(Schedule((0, 0), "p")).split(":")[1] == "0"


def test_surrounding_space_is_forgiven():
    schedule = Schedule((1, 2), "p")
    assert Schedule.parse(f" {schedule}\n", program="p") == schedule


TOKEN = str(Schedule((0, 0, 0, 1, 2), "p on 4 ranks"))


@rows("length", range(len(TOKEN)))
def test_a_token_cut_short_is_refused(length):
    with pytest.raises(ReplayError, match=r"^replay token .* expected"):
        Schedule.parse(TOKEN[:length], program="p on 4 ranks")


@rows("position", range(3, len(TOKEN)))
def test_a_changed_character_is_noticed(position):
    changed = TOKEN[:position] + ("1" if TOKEN[position] != "1" else "2") + TOKEN[position + 1 :]
    with pytest.raises(ReplayError, match=r"^replay token"):
        Schedule.parse(changed, program="p on 4 ranks")


def test_a_token_of_another_version_is_refused_by_its_version():
    with pytest.raises(ReplayError, match=r"has version s2, this ddpsim reads s1: record the failure again"):
        Schedule.parse(TOKEN.replace("s1:", "s2:"), program="p on 4 ranks")


LARGE = str(Schedule((0, 1), "p on 128 ranks", RankSeeds(hash_seeds=(28, 80))))


def test_a_token_says_its_world_size_where_it_cannot_be_found_out():
    assert LARGE.startswith("s1:0.1:w128:u28.80:")
    assert str(Schedule((0, 1), "p on 64 ranks")).count(":") == 2
    assert Schedule.parse(LARGE, program="p on 128 ranks") == Schedule(
        (0, 1), "p on 128 ranks", RankSeeds(False, (28, 80))
    )
    before = "s1:0.1:f57bb20f"  # as versions before wrote it
    assert Schedule.parse(before, program="p on 128 ranks") == Schedule((0, 1), "p on 128 ranks")


def test_a_token_of_a_failure_names_what_was_found_and_older_ones_name_nothing():
    failed = str(Schedule((0, 1), "p on 4 ranks", RankSeeds(hash_seeds=(28, 80)), found="deadlock.cycle"))
    assert failed.startswith("s1:0.1:u28.80:deadlock.cycle:")
    assert Schedule.parse(failed, program="p on 4 ranks").found == "deadlock.cycle"
    assert Schedule.parse(TOKEN, program="p on 4 ranks").found == ""
    for code in Code:
        token = str(Schedule((), "p on 4 ranks", found=code.value))
        assert Schedule.parse(token, program="p on 4 ranks").found == code.value
    with pytest.raises(ReplayError, match="does not match its checksum"):
        Schedule.parse(failed.replace("cycle", "cyclo"), program="p on 4 ranks")


@rows(
    ("token", "program", "told"),
    [
        (TOKEN, "q on 4 ranks", "program than q on 4 ranks: replay it with the one it came from"),
        (TOKEN, "p on 5 ranks", "world size than p on 5 ranks: replay it on 4 ranks, where it came from"),
        (TOKEN, "q", "program than q: replay it with the one it came from"),
        (LARGE, "p on 127 ranks", "world size than p on 127 ranks: replay it on 128 ranks, where it came from"),
        (LARGE, "q on 128 ranks", "program than q on 128 ranks: replay it with the one it came from"),
        (LARGE, "q on 4 ranks", "program, on 128 ranks, than q on 4 ranks: replay it with the one it came from"),
    ],
)
def test_a_token_of_another_program_or_world_size_is_refused_and_says_which(token, program, told):
    with pytest.raises(ReplayError, match=f"recorded for another {told}$"):
        Schedule.parse(token, program=program)


@pytest.mark.parametrize("recorded", ["own.py:train", "./own.py:train", "{}/own.py:train", "{}/own.py:train --lr 1"])
@pytest.mark.parametrize("typed", ["own.py:train", "./own.py:train", "{}/own.py:train", "../{1}/own.py:train"])
def test_a_token_is_of_a_program_and_not_of_the_spelling_of_its_path(recorded, typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    of, program = (each.format(tmp_path, tmp_path.name).replace("{1}", tmp_path.name) for each in (recorded, typed))
    token = str(Schedule((0, 1), f"{of} on 2 ranks"))
    assert Schedule.is_recorded_for(token, f"{program} on 2 ranks") is ("--lr" not in recorded)
    assert not Schedule.is_recorded_for(token, f"{program.replace('own', 'other')} on 2 ranks")


@rows("token", ["", "s1", "nonsense", "s1:::", "s1:0.x.1:00000000", "x" * 10_000])
def test_garbage_is_refused_in_one_short_line(token):
    with pytest.raises(ReplayError, match=r"^replay token [^\n]{0,200}$"):
        Schedule.parse(token, program="p")


@pytest.mark.parametrize(("program", "is_its_own"), [("p on 4 ranks", True), ("p on 5 ranks", False), ("", False)])
def test_a_token_tells_whether_it_was_recorded_for_a_program(program, is_its_own):
    assert Schedule.is_recorded_for(TOKEN, program) is is_its_own
    assert Schedule.is_recorded_for(f" {TOKEN}\n", program) is is_its_own


def test_a_damaged_token_belongs_to_nobody_and_says_so():
    with pytest.raises(ReplayError, match="is not valid, expected something"):
        Schedule.is_recorded_for(TOKEN[:-1], "p on 4 ranks")
