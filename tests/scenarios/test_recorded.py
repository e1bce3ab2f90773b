"""What a saved run came to, as a table of its file."""

import re

import pytest

from ddpsim import Code, UsageError, Verdict
from ddpsim.scenarios import run_scenario
from ddpsim.scenarios.files.recorded_outcome import (
    RecordedOutcome,
    append_outcome,
    read_recorded_outcome,
    recorded_outcome_of,
)
from ddpsim.scenarios.files.toml_source import tomllib


def test_what_is_recorded_of_a_run_and_written_is_read_again(write):
    result = run_scenario("both-send-first", policy="random", seed=1)
    path = write(append_outcome('summary = "s"\n\n[expect]\noracle = true\n', result))
    recorded = read_recorded_outcome(str(path))
    assert recorded == recorded_outcome_of(result)
    assert recorded == RecordedOutcome(
        Verdict.FAIL, (Code.DEADLOCK_CYCLE,), result.trace.digest(), len(result.schedule.choices)
    )
    again = recorded_outcome_of(run_scenario("both-send-first", policy="random", seed=1))
    assert (recorded.choices > 0, recorded.first_difference(again)) == (True, "")
    uncounted = RecordedOutcome(recorded.verdict, recorded.codes, recorded.digest, 0)  # choices are not compared
    assert recorded.first_difference(uncounted) == uncounted.first_difference(recorded) == ""
    table = tomllib.loads(path.read_text())
    assert (table["summary"], table["expect"], table["recorded"]["codes"]) == (
        "s",
        {"oracle": True},
        ["deadlock.cycle"],
    )


def test_nothing_is_recorded_in_other_files_and_for_names(write):
    assert read_recorded_outcome(str(write('summary = "s"\n'))) is None
    assert read_recorded_outcome("send-send") is None
    assert read_recorded_outcome("train.py:main") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recorded = 3", "recorded is 3, expected a table"),
        ("[recorded]\ndigest = '00'", "recorded.verdict is missing, expected one of pass, unknown, fail"),
        ("[recorded]\nverdict = 'bad'", "recorded.verdict is 'bad', expected one of pass, unknown, fail"),
        (
            "[recorded]\nverdict = 'fail'\ncodes = ['stuk']",
            "recorded.codes[0] is 'stuk', expected one of mismatch.",
        ),
        ("[recorded]\nverdict = 'fail'\nchoices = -1", "recorded.choices is -1, expected a whole number from 0 on"),
        ("[recorded]\nverdict = 'fail'\ntoken = ''", "recorded.token is not a known key, expected one of"),
    ],
)
def test_a_table_edited_by_hand_is_one_line(write, text, message):
    path = write(text)
    with pytest.raises(UsageError, match=rf"^{re.escape(str(path))}:\d+: {re.escape(message)}[^\n]*$"):
        read_recorded_outcome(str(path))
