"""Scenarios in files: `loader.py` finds one by its name or in a file, `registry.py` has those that come with ddpsim."""
