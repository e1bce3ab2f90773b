"""Runs ranks as threads of one process.

Exactly one thread runs at a time: the one that has the baton, the right to run.
"""
