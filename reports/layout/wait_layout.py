"""Draws the wait-for graph: a cycle of waits as a circle, all other nodes in layers from left to right.

Layers are on both sides of the circle, each node on the side of its neighbours, so that few arrows cross the circle.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import networkx as nx

from ddpsim.reports.layout.wait_nodes import DrawnWaitGraph, WaitEdge, WaitNode, digraph, fold_graph

_LETTER = 7.4
"""The approximate width of a letter in a label."""
_SMALL_LETTER = 6.4
_BOX_HEIGHT = 42.0
_PILE = 5.0
_GAP = 130.0
"""The least distance between layers, with room for the label of an edge."""
_UPRIGHT_GAP = 44.0
"""The least distance between layers that are below each other."""
_MOST_UPRIGHT = 12
_ROW = 64.0
_BETWEEN = 36.0
"""The distance between neighbouring boxes of a circle."""
_LONGEST = 34
"""The most letters of a label; the rest is cut."""


@dataclass(frozen=True, slots=True)
class Box:
    """A node of the wait-for graph (ranks, or a thread) with its position."""

    node: WaitNode
    label: str
    state: str
    """How the ranks ended; for a folded node also their number."""
    x: float
    """The horizontal position of the box's centre."""
    y: float
    width: float
    pile: float
    """The offset of a second box behind this one, drawn if the node is folded; else 0."""
    height: float = _BOX_HEIGHT


@dataclass(frozen=True, slots=True)
class Arrow:
    """An edge of the graph from border to border, bent if there is an edge in the other direction."""

    edge: WaitEdge
    label: str
    path: str
    x: float
    """The horizontal position of the edge's label."""
    y: float
    anchor: Literal["start", "middle", "end"]
    """Which part of the label is at that position; labels of a circle are outside of the circle."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The wait-for graph with positions of boxes and arrows."""

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    left: float
    top: float
    width: float
    height: float


Point = tuple[float, float]


def pictures_of(graph: DrawnWaitGraph) -> dict[str, Picture]:
    """Return the picture for "any" screen, or one for a "wide" and one for a "narrow" screen.

    Nodes of a large graph are folded. The narrow picture has layers below each other, which suits no circle.
    """
    graph = fold_graph(graph)
    widths = [_box_width(node) for node in graph.nodes]
    centres = _place_nodes(graph, widths)
    picture = _draw_picture(graph, widths, centres)
    if len(graph.cycle) > 2 or len(graph.nodes) > _MOST_UPRIGHT:
        return {"any": picture}
    across = (max(widths) + _BETWEEN) / _ROW
    down = (_BOX_HEIGHT + _UPRIGHT_GAP) / (max(widths) + _layer_distance(graph))
    upright = [(y * across, x * down) for x, y in centres]
    return {"wide": picture, "narrow": _draw_picture(graph, widths, upright, is_upright=True)}


def _draw_picture(
    graph: DrawnWaitGraph, widths: list[float], centres: list[Point], *, is_upright: bool = False
) -> Picture:
    left = min(x - width / 2 for (x, _), width in zip(centres, widths, strict=True))
    boxes = tuple(_make_box(node, x - left, y) for node, (x, y) in zip(graph.nodes, centres, strict=True))
    arrows = tuple(_make_arrow(edge, boxes, graph, is_upright=is_upright) for edge in graph.edges)
    left = min([0.0, *(_label_span(arrow)[0] for arrow in arrows)]) - 12
    right = max([*(box.x + box.width / 2 for box in boxes), *(_label_span(arrow)[1] for arrow in arrows)]) + 12
    top = min([*(box.y - box.height / 2 for box in boxes), *(arrow.y - 14 for arrow in arrows)]) - 6
    bottom = max([*(box.y + box.height / 2 for box in boxes), *(arrow.y for arrow in arrows)]) + 10
    return Picture(boxes, arrows, *(round(each, 1) for each in (left, top, right - left, bottom - top)))


def _box_width(node: WaitNode) -> float:
    return max(76.0, 24 + _LETTER * len(_shorten_label(node.label)), 16 + _SMALL_LETTER * len(_state_text(node)))


def _make_box(node: WaitNode, x: float, y: float) -> Box:
    pile = _PILE if node.is_folded else 0.0
    return Box(node, _shorten_label(node.label), _state_text(node), round(x, 1), round(y, 1), _box_width(node), pile)


def _place_nodes(graph: DrawnWaitGraph, widths: list[float]) -> list[Point]:
    """Return the centres of nodes: the circle in the middle, all others in columns near their neighbours."""
    layers = _find_layers(graph)
    middle = layers[graph.cycle[0]] if graph.cycle else 0
    gap = _layer_distance(graph)
    across, down = _circle_radii(len(graph.cycle), max(widths), gap)
    placed = _place_on_circle(graph.cycle, across, down)
    rest = [node for node in range(len(layers)) if node not in placed]
    if placed:
        tied = [node for node in rest if layers[node] == middle]
        placed |= {node: (0.0, down + (row + 1.5) * _ROW) for row, node in enumerate(tied)}
    for distance in sorted({abs(layers[node] - middle) for node in rest if node not in placed}):
        aside = across + distance * (max(widths) + gap)
        columns: dict[float, list[tuple[float, int]]] = {}
        for node in (each for each in rest if abs(layers[each] - middle) == distance):
            to_x, to_y = _mean_of_neighbours(node, graph, placed)
            is_left = graph.cycle and (to_x or layers[node] - middle) < 0
            columns.setdefault(-aside if is_left else aside, []).append((to_y, node))
        for x, column in columns.items():
            placed |= _place_column(x, column)
    return [placed[node] for node in range(len(layers))]


def _mean_of_neighbours(node: int, graph: DrawnWaitGraph, placed: Mapping[int, Point]) -> Point:
    ends = ((edge.source, edge.target) for edge in graph.edges if node in (edge.source, edge.target))
    joined = [placed[other] for pair in ends for other in pair if other in placed] or [(0.0, 0.0)]
    return round(sum(x for x, _ in joined) / len(joined), 1), round(sum(y for _, y in joined) / len(joined), 1)


def _place_column(x: float, wanted: Iterable[tuple[float, int]]) -> dict[int, Point]:
    """Place nodes below each other, each near the height given for it."""
    wanted = sorted(wanted)
    rows: list[float] = []
    for y, _ in wanted:
        rows.append(max(y, rows[-1] + _ROW) if rows else y)
    shift = sum(y - row for (y, _), row in zip(wanted, rows, strict=True)) / len(rows)
    return {node: (x, row + shift) for (_, node), row in zip(wanted, rows, strict=True)}


def _place_on_circle(cycle: Sequence[int], across: float, down: float) -> dict[int, Point]:
    """Return the centres of nodes on an ellipse, clockwise from the top; two nodes are side by side."""
    first = math.pi if len(cycle) == 2 else -math.pi / 2
    turns = (first + 2 * math.pi * number / len(cycle) for number in range(len(cycle)))
    return {node: (across * math.cos(turn), down * math.sin(turn)) for node, turn in zip(cycle, turns, strict=True)}


def _layer_distance(graph: DrawnWaitGraph) -> float:
    return max([_GAP, *(_SMALL_LETTER * len(_shorten_label(edge.label)) + 24 for edge in graph.edges)])


def _circle_radii(count: int, width: float, gap: float) -> tuple[float, float]:
    """Return the radii of an ellipse with room for `count` boxes and labels; neighbours at 45 degrees need the root."""
    if count <= 2:
        return (width + gap) / 2 * (count == 2), 0.0
    chord = math.sqrt(2) * math.sin(math.pi / count)
    return (width + _BETWEEN) / chord, _ROW / chord


def _find_layers(graph: DrawnWaitGraph) -> list[int]:
    """Return the layer of each node, from left to right: first those that no node waits for; a cycle is one layer."""
    layers = [0] * len(graph.nodes)
    parts = nx.condensation(digraph(len(graph.nodes), graph.edges))
    for layer, generation in enumerate(nx.topological_generations(parts)):
        for node in (node for part in generation for node in parts.nodes[part]["members"]):
            layers[node] = layer
    return layers


def _make_arrow(edge: WaitEdge, boxes: tuple[Box, ...], graph: DrawnWaitGraph, *, is_upright: bool) -> Arrow:
    source, target = boxes[edge.source], boxes[edge.target]
    is_mutual = any((each.source, each.target) == (edge.target, edge.source) for each in graph.edges)
    bend = 34.0 if is_mutual else 0.0
    distance = math.hypot(target.x - source.x, target.y - source.y) or 1.0
    across = (target.y - source.y) / distance, (source.x - target.x) / distance
    middle = (source.x + target.x) / 2 + bend * across[0], (source.y + target.y) / 2 + bend * across[1]
    start, end = _point_on_border(source, middle), _point_on_border(target, middle)
    path = f"M{start[0]:.1f} {start[1]:.1f}Q{middle[0]:.1f} {middle[1]:.1f} {end[0]:.1f} {end[1]:.1f}"
    x, y = ((start[i] + end[i]) / 4 + middle[i] / 2 for i in (0, 1))
    label = _shorten_label(edge.label)
    if edge.source in graph.cycle and edge.target in graph.cycle and len(graph.cycle) > 2:
        circle = [boxes[node] for node in graph.cycle]
        return _move_label_off_boxes(Arrow(edge, label, path, *_label_outside_circle(x, y, circle)), circle)
    if is_upright:
        is_left = is_mutual and across[0] < 0
        beside = round(x + (-8 if is_left else 8), 1)
        return Arrow(edge, label, path, beside, round(y + 4, 1), "end" if is_left else "start")
    below = 18 if is_mutual and bend * across[1] > 0 else -7
    return Arrow(edge, label, path, round(x, 1), round(y + below, 1), "middle")


def _label_outside_circle(
    x: float, y: float, boxes: list[Box]
) -> tuple[float, float, Literal["start", "middle", "end"]]:
    """Return the position of the label of a circle's edge, given the middle of the edge."""
    across = x - sum(box.x for box in boxes) / len(boxes)
    down = y - sum(box.y for box in boxes) / len(boxes)
    if abs(across) < 20:
        return round(x, 1), round(y + math.copysign(14, down) + 4, 1), "middle"
    shift = math.copysign(10, across)
    return round(x + shift, 1), round(y + math.copysign(11, down) + 4, 1), "start" if across > 0 else "end"


def _move_label_off_boxes(arrow: Arrow, circle: list[Box]) -> Arrow:
    """Move the label outwards, off the boxes: near the top and bottom of a circle, the label would cover a box."""
    down = arrow.y - sum(box.y for box in circle) / len(circle)
    start, end = _label_span(arrow)
    y = arrow.y
    for box in circle:
        beside = end <= box.x - box.width / 2 or start >= box.x + box.width / 2
        away = box.height / 2 + 10
        if not beside and abs(y - 3 - box.y) < away:
            y = box.y + math.copysign(away, down) + 3
    return replace(arrow, y=round(y, 1))


def _point_on_border(box: Box, towards: Point) -> Point:
    """Return a point just outside of the border of a box, on the line from its centre to `towards`."""
    dx, dy = towards[0] - box.x, towards[1] - box.y
    away = box.pile + 3
    scale = min(
        (box.width / 2 + away) / abs(dx) if dx else math.inf,
        (box.height / 2 + away) / abs(dy) if dy else math.inf,
        1.0,
    )
    return box.x + dx * scale, box.y + dy * scale


def _label_span(arrow: Arrow) -> tuple[float, float]:
    width = len(arrow.label) * _LETTER
    start = arrow.x - {"start": 0.0, "middle": width / 2, "end": width}[arrow.anchor]
    return start, start + width


def _state_text(node: WaitNode) -> str:
    state = node.end if node.end != "waiting" else "wait" if len(node.members) > 1 else "waits"
    if not node.is_folded:
        return state
    threads = sum(bool(who.thread) for who in node.members)
    what = {0: "ranks ", len(node.members): "threads "}.get(threads, "")
    return f"{len(node.members):,} {what}{state}"


def _shorten_label(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}\u2026"
