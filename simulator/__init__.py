"""The simulator: it matches the calls of ranks with each other, schedules the ranks, and diagnoses failures.

Users import its public names from the package `ddpsim`.
"""
