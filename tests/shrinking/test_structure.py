"""The structural shrinker: what one step makes of records, tuples, mappings, numbers and words."""

from dataclasses import dataclass, fields
from enum import Enum
from typing import NamedTuple

import pytest
from msgspec import Struct

from ddpsim.scenarios.fuzzing.shrinking import training_passes
from ddpsim.scenarios.fuzzing.shrinking.training_passes import DeclaredTraining
from ddpsim.scenarios.training.training import ParallelLayout
from ddpsim.simulator.programs.program import Group, Issue, Program
from ddpsim.simulator.shrinking import program_passes
from ddpsim.simulator.shrinking.structure import StructureShrinker


class Colour(Enum):
    """Two words."""

    GREY = 1
    RED = 2


@dataclass(frozen=True, slots=True)
class Leaf:
    """A dataclass."""

    colour: Colour
    lengths: tuple[int, ...] = ()
    name: str = "kept"


class Tree(NamedTuple):
    """A NamedTuple."""

    leaves: tuple[Leaf, ...]
    options: dict[str, int]
    mark: str | None = None


class Other(Struct, frozen=True):
    """A Struct."""

    size: int
    tree: Tree | None = None


TREES = StructureShrinker(
    {
        Tree: {"leaves": (), "options": 1, "mark": (None, "a", "b")},
        Leaf: {"colour": tuple(Colour), "lengths": 2},
        Other: {"size": 0, "tree": (None,)},
    }
)


def test_tuples_and_mappings_lose_blocks_in_every_place():
    leaf = Leaf(Colour.GREY, (7, 8))
    found = list(TREES.with_fewer_elements(Other(3, Tree((leaf,), {"x": 1, "y": 2}))))
    assert [each.tree for each in found] == [
        Tree((), {"x": 1, "y": 2}),
        *(Tree((Leaf(Colour.GREY, lengths),), {"x": 1, "y": 2}) for lengths in ((8,), (7,))),
        *(Tree((leaf,), options) for options in ({}, {"y": 2}, {"x": 1})),
    ]
    assert {each.size for each in found} == {3}


def test_numbers_and_words_become_plainer():
    assert list(TREES.with_plainer_leaf(Other(7))) == [Other(0), Other(3), Other(6)]
    assert list(TREES.with_plainer_leaf(Other(-2))) == [Other(0), Other(-1)]
    assert list(TREES.with_plainer_leaf(Other(0, Tree((), {}, "b")))) == [
        Other(0),
        Other(0, Tree((), {}, None)),
        Other(0, Tree((), {}, "a")),
    ]
    assert list(TREES.with_plainer_leaf(Tree((), {"x": 2}))) == [Tree((), {"x": 1})]
    assert list(TREES.with_plainer_leaf(Leaf(Colour.RED, (2, 0)))) == [
        Leaf(Colour.GREY, (2, 0)),
        Leaf(Colour.RED, (2,)),  # one plain number in place of all
        Leaf(Colour.RED, (2, 2)),  # a number below the plain one grows
        Leaf(Colour.RED, (2, 1)),
    ]


def test_what_is_alike_changes_together():
    red, long = Leaf(Colour.RED, (2,)), Leaf(Colour.RED, (2, 5), "other")
    found = list(TREES.with_equal_parts_changed((red, long, red)))
    grey = Leaf(Colour.GREY, (2,)), Leaf(Colour.GREY, (2, 5), "other"), Leaf(Colour.GREY, (2,))
    assert grey in found
    assert (red, Leaf(Colour.RED, (2,), "other"), red) in found
    assert (red, Leaf(Colour.RED, (2, 3), "other"), red) in found
    assert all(each[0] == each[2] for each in found if len(each) == 3)


def test_elements_move_to_earlier_places():
    one, two, three = (Leaf(Colour.GREY, name=name) for name in "123")
    assert list(TREES.with_element_moved_forward((one, two, three))) == [
        (two, one, three),
        (three, one, two),
        (one, three, two),
    ]
    assert list(TREES.with_element_moved_forward((one,) * 31)) == []


def test_what_is_plain_weighs_least():
    assert (TREES.distance_of_words(Leaf(Colour.GREY, (2,))), TREES.distance_of_numbers(Leaf(Colour.GREY, (2,)))) == (
        0,
        1,
    )
    assert TREES.distance_of_numbers(Leaf(Colour.GREY, ())) == 2
    tree = Tree((Leaf(Colour.RED, (5, 1)),), {"x": 3, "y": 1}, "b")
    assert TREES.distance_of_words(tree) == 2 + 1 + 2  # "b" is the third word, RED the second; two options
    assert TREES.distance_of_numbers(tree) == 3 + 1 + 2 + 2  # 5 and 1 instead of 2, two numbers; 3 instead of 1


def test_what_no_table_lists_stays():
    assert list(StructureShrinker({}).with_plainer_leaf(Leaf(Colour.RED, (5,)))) == []
    assert list(StructureShrinker({}).with_fewer_elements({"x": object})) == [{}]


KEPT = {
    Program: {"world_size"},  # the passes for ranks change it
    Group: {"name"},
    Issue: {"at", "name", "operation", "peer"},  # a reader recognises the call by them
    DeclaredTraining: {"world_size"},
    ParallelLayout: {"dp", "dp_replicate", "dp_shard", "pp", "tp"},  # `smaller_mesh` changes them
}
"""Fields that no step of a structure changes, and why."""


@pytest.mark.parametrize("passes", [program_passes, training_passes], ids=["programs", "trainings"])
def test_a_new_field_has_a_row_or_is_kept_on_purpose(passes):
    for kind, row in passes.STRUCTURE._table.items():
        names = getattr(kind, "__struct_fields__", None) or getattr(kind, "_fields", None)
        names = names or [field.name for field in fields(kind)]
        assert set(names) == set(row) | KEPT.get(kind, set()), kind.__name__
        assert not set(row) & KEPT.get(kind, set()), kind.__name__
