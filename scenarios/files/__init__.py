"""Scenarios in files. `loader.py` finds a scenario by name or in a file."""
