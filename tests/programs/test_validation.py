"""A program that ranks could not run is refused in one line: what was found, what was expected, what to do."""

import pytest

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.programs.check import check_program
from ddpsim.simulator.programs.program import Group, Issue, Program, Wait
from ddpsim.simulator.programs.validation import validate_program
from tests.kit.rows import rows
from tests.programs.programs import program, received, reduced, sent, waited

A = reduced("a")
G = Group("g", (0, 1))


def alone(issue, groups=()):
    """The call on rank 0 of three."""
    return program((issue,), (), (), groups=groups)


def exchanged(shapes, splits):
    return Issue("x", "all_to_all_single", shapes=shapes, dtype="int8", splits=splits)


BAD = {
    "no-ranks": (Program(0, (), ()), "world_size is 0, expected 1 or more"),
    "other-count": (Program(2, (), ((),)), "steps are given for 1 ranks, expected steps for all 2"),
    "group-twice": (program((), (), groups=[G, G]), "group 'g' is defined twice"),
    "group-default": (program((), groups=[Group("default", (0,))]), "group 'default' is defined twice"),
    "group-order": (
        program((), (), groups=[Group("g", (1, 0))]),
        r"group 'g' has ranks \[1, 0\], expected some of 0 to 1",
    ),
    "group-outside": (program((), (), groups=[Group("g", (0, 2))]), r"group 'g' has ranks \[0, 2\]"),
    "group-empty": (program((), groups=[Group("g", ())]), r"group 'g' has ranks \[\]"),
    "name-twice": (program((A, A)), "rank 0 step 1: issues 'a' again, expected another name"),
    "wait-for-nothing": (program((), (Wait("b"),)), "rank 1 step 0: waits for 'b', expected the name of a call"),
    "wait-twice-for-a-send": (
        program((*waited(sent("a", 1)), Wait("a")), ()),
        "rank 0 step 2: waits for the message 'a' again, expected one wait, because gloo would wait forever",
    ),
    "wait-twice-for-a-recv": (
        program((), (received("a", 0), Wait("a"), Wait("a"))),
        "rank 1 step 2: waits for the message 'a' again, expected one wait",
    ),
    "name": (alone(reduced("\ud800")), r"rank 0 step 0: name is '\\ud800', expected valid Unicode"),
    "name-of-group": (program((), groups=[Group("\udfff", (0,))]), r"name is '\\udfff', expected valid Unicode"),
    "operation": (program((Issue("a", "reduce_all"),)), "operation is 'reduce_all', expected one of all_reduce, "),
    "group-unknown": (alone(reduced("a", group="h")), "group is 'h', expected a group that the rank is in: default"),
    "group-of-others": (
        program((), (), (reduced("a", group="g"),), groups=[G]),
        "rank 2 step 0: group is 'g', expected a group that the rank is in: default",
    ),
    "dtype": (alone(reduced("a", dtype="complex64")), "all_reduce has dtype 'complex64', expected one of float32, "),
    "dtype-of-barrier": (alone(Issue("a", "barrier", dtype="int8")), "barrier has dtype 'int8', expected none"),
    "reduction": (alone(reduced("a", reduction="BAND")), "all_reduce of float32 has reduction 'BAND', expected one of"),
    "no-reduction": (alone(reduced("a", reduction=None)), "all_reduce of float32 has reduction None"),
    "root-outside": (
        alone(Issue("a", "broadcast", "g", ((1,),), "int8", root=2), [G]),
        "broadcast has root 2, expected one of 0, 1",
    ),
    "root-of-none": (alone(Issue("a", "barrier", root=0)), "barrier has root 0, expected none"),
    "peer-self": (alone(sent("a", 0)), "send has peer 0, expected one of 1, 2"),
    "peer-any": (alone(sent("a", -1)), "send has peer -1, expected one of 1, 2"),
    "peer-of-collective": (alone(Issue("a", "barrier", peer=1)), "barrier has peer 1, expected none"),
    "tag": (alone(sent("a", 1, tag=-1)), "send has tag -1, expected 0 to 2147483647"),
    "tag-beyond-an-int": (alone(sent("a", 1, tag=2**31)), "send has tag 2147483648, expected 0 to 2147483647"),
    "tag-of-collective": (alone(Issue("a", "barrier", tag=1)), "barrier has tag 1, expected 0:"),
    "shapes": (alone(Issue("a", "broadcast", dtype="int8", root=0)), "broadcast has 0 shapes, expected one"),
    "shapes-per-member": (
        alone(Issue("a", "all_to_all", shapes=((1,), (1,)), dtype="int8")),
        "all_to_all has 2 shapes, expected one for each member of the group",
    ),
    "shapes-differ": (
        alone(Issue("a", "all_to_all", shapes=((1,), (1,), (2,)), dtype="int8")),
        "all_to_all has shapes .*, expected the same for each member",
    ),
    "length": (alone(reduced("a", -1)), "all_reduce has shapes .*, expected no length below 0"),
    "length-beyond-an-int": (alone(reduced("a", 2**70)), "all_reduce has shapes .*, expected at most 268435456"),
    "too-many-elements": (alone(reduced("a", 10**7, 10**6)), "all_reduce has shapes .*, expected at most 268435456"),
    "too-long-of-nothing": (alone(reduced("a", 0, 2**70)), "all_reduce has shapes .*, expected at most 268435456"),
    "nothing-from-any": (
        alone(received("a", -1, shape=(0, 2))),
        r"recv from any source has shapes \[\(0, 2\)\], expected 1 element or more, as gloo rejects 0",
    ),
    "rows": (
        alone(Issue("a", "reduce_scatter_tensor", shapes=((4,),), dtype="int8", reduction="SUM")),
        "reduce_scatter_tensor has 4 rows, expected a multiple of the 3 members",
    ),
    "no-rows": (
        alone(Issue("a", "all_gather_into_tensor", shapes=((),), dtype="int8")),
        "all_gather_into_tensor has a shape without dimensions, expected rows",
    ),
    "no-splits": (alone(exchanged(((3,), (3,)), None)), "all_to_all_single has splits None, expected two lists"),
    "splits-of-none": (
        alone(Issue("a", "barrier", splits=((1,), (1,)))),
        "barrier has splits .*, expected none",
    ),
    "splits-sum": (
        alone(exchanged(((3,), (3,)), ((1, 1, 1), (1, 1, 2)))),
        "all_to_all_single has splits .*, expected two lists of 3 with sums of 3 and 3",
    ),
}


@rows("case", BAD.values(), ids=BAD)
def test_refused_in_one_line(case):
    bad, words = case
    with pytest.raises(UsageError, match=words) as refusal:
        validate_program(bad)
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).endswith(": correct the program")


def test_check_refuses_as_well():
    with pytest.raises(UsageError, match=r"^rank 0 step 0: waits for 'a'"):
        check_program(program((Wait("a"),)))


@rows(
    "accepted",
    [
        program((*waited(reduced("a", group="g")), A.__class__("b", "barrier")), (), groups=[Group("g", (0,))]),
        program((A, Wait("a"), Wait("a"))),
        program(waited(sent("a", 1, tag=2**31 - 1)), waited(received("a", 0, tag=2**31 - 1))),
    ],
    ids=["a group of one", "a collective is waited for as often as one likes", "the largest tag"],
)
def test_accepted(accepted):
    validate_program(accepted)
