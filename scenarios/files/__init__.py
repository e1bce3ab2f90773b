"""Scenarios in files: reading and writing Python files, and TOML files of trainings and of steps.

`loader.py` finds a scenario by its name or in a file. `registry.py` and `catalogue.py` find those that come with
ddpsim.
"""
