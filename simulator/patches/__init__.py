"""Replacements of functions of torch, besides process groups and stores, so that ranks can run in one process."""
