"""Modules that a Python started by a rank or launcher imports at its start: self-contained, and without torch."""
