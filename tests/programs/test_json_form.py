"""The JSON form: every program comes back as it was, and a damaged text is refused in one line that says where."""

import json

import pytest

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.programs.program import CrashStep, Group, Issue, Program, Return, Wait
from ddpsim.simulator.programs.program_json import from_json, to_json
from tests.agreement.labelled import labelled
from tests.kit.rows import rows
from tests.programs.programs import program, received, reduced, waited

ONE = program(
    (*waited(reduced("a", group="g")), Return()),
    (received("b", -1, tag=3), CrashStep()),
    (),
    groups=[Group("g", (0, 2))],
)


def test_round_trip_of_drawn_programs():
    drawn = [labelled(seed).program for seed in range(300)]
    assert [from_json(to_json(each)) for each in drawn] == drawn


def test_round_trip_of_what_json_could_bend():
    odd = Program(1, (Group('"g"\n', (0,)),), ((Issue("ä\ud83d", "barrier"), Wait("ä\ud83d")),))
    assert from_json(to_json(odd)) == odd


def test_a_step_is_a_line_without_defaults():
    lines = to_json(ONE).splitlines()
    assert (
        '      {"issue": "a", "operation": "all_reduce", "group": "g", "shapes": [[4]], "dtype": "float32", '
        in lines[6]
    )
    assert lines[7:9] == ['      {"wait": "a"},', '      "return"']
    assert lines[1] == '  "format": "ddpsim program", "version": 1,'


def changed(**changes):
    return json.dumps({**json.loads(to_json(ONE)), **changes})


def with_step(step):
    return changed(ranks=[[step]], world_size=1)


DAMAGED = {
    "cut": (to_json(ONE)[:100], "^no JSON: "),
    "empty": ("", "^no JSON: "),
    "nested": ("[" * 100_000, "^JSON nested too deep"),
    "digits": ("9" * 5_000, "^no JSON: "),
    "list": ("[]", '^the file: found no "format": "ddpsim program", expected a ddpsim program'),
    "foreign": ('{"format": "x"}', '^the file: found no "format": "ddpsim program"'),
    "version": (changed(version=2), "^version: found 2, expected 1, which this ddpsim reads"),
    "version-true": (changed(version=True), "^version: found True, expected 1, which"),
    "version-fraction": (changed(version=1.0), "^version: found 1.0, expected 1, which"),
    "key": (changed(more=1), "^the file: found key 'more', expected only format, version, "),
    "world-size": (changed(world_size="3"), "^world_size: found '3', expected a whole number"),
    "world-size-true": (changed(world_size=True), "^world_size: found True, expected a whole number"),
    "no-groups": (changed(groups=None), "^groups: found None, expected a list"),
    "group": (changed(groups=[3]), r"^groups\[0\]: found 3, expected an object with name, ranks"),
    "group-ranks": (changed(groups=[{"name": "g", "ranks": [0.5]}]), r"^groups\[0\].ranks\[0\]: found 0.5"),
    "rank": (changed(ranks=[{}]), r"^ranks\[0\]: found {}, expected a list"),
    "step": (with_step("leave"), r"^ranks\[0\]\[0\]: found 'leave', expected {\"issue\": ...}"),
    "step-number": (with_step(1), r"^ranks\[0\]\[0\]: found 1"),
    "wait": (with_step({"wait": 1}), r"^ranks\[0\]\[0\].wait: found 1, expected a text"),
    "wait-more": (with_step({"wait": "a", "for": 1}), r"^ranks\[0\]\[0\]: found key 'for', expected only wait"),
    "operation": (with_step({"issue": "a"}), r"^ranks\[0\]\[0\].operation: found None, expected a text"),
    "shapes": (with_step({"issue": "a", "operation": "b", "shapes": [3]}), r"^ranks\[0\]\[0\].shapes\[0\]: found 3"),
    "splits": (
        with_step({"issue": "a", "operation": "b", "splits": [[1]]}),
        r"^ranks\[0\]\[0\].splits: found 1 lists, expected two",
    ),
}


@rows("case", DAMAGED.values(), ids=DAMAGED)
def test_damage_is_told_in_one_line(case):
    text, words = case
    with pytest.raises(UsageError, match=words) as refusal:
        from_json(text)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


def test_every_cut_of_a_text_is_refused():
    text = to_json(ONE).rstrip()
    for end in range(len(text)):
        with pytest.raises(UsageError):
            from_json(text[:end])
