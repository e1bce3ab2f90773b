"""Policies: the algorithms that answer `choose(point, options)`, one a file."""
