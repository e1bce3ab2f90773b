"""Replacements of functions of torch, other than process groups and stores, so that ranks can run in one process."""
