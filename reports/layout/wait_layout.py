"""The wait-for graph as a picture: who wait for each other on a circle, everybody else in layers from left to right."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from reports.layout.wait_graph import Edge, Node, WaitGraph

LARGEST = 24
"""Nodes of a picture that one can still read."""

_LETTER = 7.4
"""Width of a letter, about."""
_BOX_HEIGHT = 42.0
_GAP = 130.0
"""Between layers: an edge's label has to stand there."""
_ROW = 64.0
_ROUND = 1.35
"""A circle is so much wider than high."""
_LONGEST = 34
"""Letters of a label; the rest is left out."""


@dataclass(frozen=True, slots=True)
class Box:
    """A node in its place."""

    node: Node
    label: str
    x: float
    """Of its centre."""
    y: float
    width: float
    height: float = _BOX_HEIGHT


@dataclass(frozen=True, slots=True)
class Arrow:
    """An edge: from border to border, bent if there is one back."""

    edge: Edge
    label: str
    path: str
    x: float
    """Of its label."""
    y: float
    anchor: Literal["start", "middle", "end"]
    """Which part of the label stands there: labels of a circle stand outside of it."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The graph, drawn."""

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    left: float
    top: float
    width: float
    height: float


Point = tuple[float, float]


def picture_of(graph: WaitGraph) -> Picture | None:
    """Where everything of the graph stands; None if there is too much of it for a picture."""
    if len(graph.nodes) > LARGEST:
        return None
    widths = [max(76.0, 24 + _LETTER * len(_short(node.label))) for node in graph.nodes]
    circle = _circle(graph)
    centres = _places(graph, widths, circle)
    left = min(x - width / 2 for (x, _), width in zip(centres, widths, strict=True))
    boxes = tuple(
        Box(node, _short(node.label), round(x - left, 1), round(y, 1), width)
        for node, (x, y), width in zip(graph.nodes, centres, widths, strict=True)
    )
    arrows = tuple(_arrow(edge, boxes, graph, circle) for edge in graph.edges)
    left = min(0.0, *(_span(arrow)[0] for arrow in arrows)) - 12
    right = max([*(box.x + box.width / 2 for box in boxes), *(_span(arrow)[1] for arrow in arrows)]) + 12
    top = min([*(box.y - box.height / 2 for box in boxes), *(arrow.y - 14 for arrow in arrows)]) - 6
    bottom = max([*(box.y + box.height / 2 for box in boxes), *(arrow.y for arrow in arrows)]) + 10
    return Picture(boxes, arrows, *(round(each, 1) for each in (left, top, right - left, bottom - top)))


def _places(graph: WaitGraph, widths: list[float], circle: list[int]) -> list[Point]:
    layers = _layers(graph)
    middle = layers[circle[0]] if circle else 0
    radius = _radius(len(circle), max(widths))
    beside, aside = max(widths) + _GAP, radius * _ROUND
    centres = [(0.0, 0.0)] * len(layers)
    for layer in sorted(set(layers)):
        column = [node for node, each in enumerate(layers) if each == layer and node not in circle]
        top = (
            (radius if len(circle) > 2 else 0.0) + 1.5 * _ROW
            if circle and layer == middle
            else -(len(column) - 1) / 2 * _ROW
        )
        for row, node in enumerate(column):
            distance = layer - middle
            centres[node] = distance * beside + (distance > 0) * aside - (distance < 0) * aside, top + row * _ROW
    first = math.pi if len(circle) == 2 else -math.pi / 2
    for number, node in enumerate(circle):
        turn = first + 2 * math.pi * number / len(circle)
        centres[node] = radius * _ROUND * math.cos(turn), radius * math.sin(turn)
    return centres


def _circle(graph: WaitGraph) -> list[int]:
    """The nodes of the cycle in its order; else the first that wait for each other."""
    after = {edge.source: edge.target for edge in graph.edges if edge.in_cycle}
    if not after:
        reached = _reached(graph)
        mutual = ([other for other in reached[node] if node in reached[other]] for node in range(len(reached)))
        return sorted(next((found for found in mutual if len(found) > 1), ()))
    found = [min(after)]
    while (following := after.get(found[-1])) is not None and following not in found:
        found.append(following)
    return found


def _radius(count: int, width: float) -> float:
    """Of a circle with room for so many boxes, and for labels between them."""
    if count < 2:
        return 0.0
    apart = width + _GAP if count == 2 else max(width * 0.9, 104.0)
    return apart / 2 / _ROUND if count == 2 else apart / (2 * math.sin(math.pi / count))


def _layers(graph: WaitGraph) -> list[int]:
    """How far to the right each node stands: those that nobody waits for on the left; a circle stands as one."""
    reached = _reached(graph)
    layers = [0] * len(graph.nodes)
    for _ in graph.nodes:
        for edge in graph.edges:
            if edge.source in reached[edge.target]:
                layers[edge.source] = layers[edge.target] = max(layers[edge.source], layers[edge.target])
            else:
                layers[edge.target] = max(layers[edge.target], layers[edge.source] + 1)
    return layers


def _reached(graph: WaitGraph) -> list[set[int]]:
    """For each node, those that it waits for, directly or not."""
    after: list[list[int]] = [[] for _ in graph.nodes]
    for edge in graph.edges:
        after[edge.source].append(edge.target)
    found: list[set[int]] = []
    for node in range(len(graph.nodes)):
        seen: set[int] = set()
        rest = list(after[node])
        while rest:
            if (one := rest.pop()) not in seen:
                seen.add(one)
                rest += after[one]
        found.append(seen)
    return found


def _arrow(edge: Edge, boxes: tuple[Box, ...], graph: WaitGraph, circle: list[int]) -> Arrow:
    source, target = boxes[edge.source], boxes[edge.target]
    is_mutual = any((each.source, each.target) == (edge.target, edge.source) for each in graph.edges)
    bend = 34.0 if is_mutual else 0.0
    distance = math.hypot(target.x - source.x, target.y - source.y) or 1.0
    across = (target.y - source.y) / distance, (source.x - target.x) / distance
    middle = (source.x + target.x) / 2 + bend * across[0], (source.y + target.y) / 2 + bend * across[1]
    start, end = _border(source, middle), _border(target, middle)
    path = f"M{start[0]:.1f} {start[1]:.1f}Q{middle[0]:.1f} {middle[1]:.1f} {end[0]:.1f} {end[1]:.1f}"
    x, y = ((start[i] + end[i]) / 4 + middle[i] / 2 for i in (0, 1))
    if edge.source in circle and edge.target in circle and len(circle) > 2:
        return Arrow(edge, _short(edge.label), path, *_outside(x, y, [boxes[node] for node in circle]))
    below = 18 if is_mutual and bend * across[1] > 0 else -7
    return Arrow(edge, _short(edge.label), path, round(x, 1), round(y + below, 1), "middle")


def _outside(x: float, y: float, boxes: list[Box]) -> tuple[float, float, Literal["start", "middle", "end"]]:
    """Where the label of a circle's edge stands, whose middle is given."""
    across = x - sum(box.x for box in boxes) / len(boxes)
    down = y - sum(box.y for box in boxes) / len(boxes)
    if abs(across) < 20:
        return round(x, 1), round(y + math.copysign(14, down) + 4, 1), "middle"
    shift = math.copysign(10, across)
    return round(x + shift, 1), round(y + math.copysign(6, down) + 4, 1), "start" if across > 0 else "end"


def _border(box: Box, towards: Point) -> Point:
    """Where the line from the centre of a box to a point leaves it, and a little beyond."""
    dx, dy = towards[0] - box.x, towards[1] - box.y
    scale = min(
        (box.width / 2 + 3) / abs(dx) if dx else math.inf,
        (box.height / 2 + 3) / abs(dy) if dy else math.inf,
        1.0,
    )
    return box.x + dx * scale, box.y + dy * scale


def _span(arrow: Arrow) -> tuple[float, float]:
    """Where its label begins and ends."""
    width = len(arrow.label) * _LETTER
    start = arrow.x - {"start": 0.0, "middle": width / 2, "end": width}[arrow.anchor]
    return start, start + width


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}\u2026"
