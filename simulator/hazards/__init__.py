"""Finds code that works in this run, but may hang or give wrong numbers under another backend or schedule."""
