"""Scenarios in files: Python files, and TOML files of trainings and of steps, read and written."""
