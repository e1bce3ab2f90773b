"""Scenarios in files: Python files, and TOML files of trainings and of steps, read and written.

`loader.py` finds a scenario by its name or in a file, `registry.py` and `catalogue.py` those that come with ddpsim.
"""
