"""Scenarios in files. `loader.py` finds a scenario by name or in a file; `registry.py` has the scenarios of ddpsim."""
