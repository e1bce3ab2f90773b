"""The parts of a text that are coloured on a terminal: regular expressions with styles of rich."""

from __future__ import annotations

STYLES = (
    (r"(?m)^(?:DEADLOCK|MISMATCH|ERROR|STUCK|DIVERGENCE)\b|^not as expected", "bold red"),
    (r"(?m)^(?:HAZARD|UNKNOWN)\b|^unknown", "bold yellow"),
    (r"(?m)^PASS\b|^as expected", "bold green"),
    (r"(?m)^  (?:where|cause|try|note|cycle|replay) ", "bold"),
    (r"(?m)^  ranks? [\d, -]+", "cyan"),
    (r"(?m)^--- .*$", "bold"),
    (r"(?m)(?<=\d  )! .*$", "bold red"),
)
