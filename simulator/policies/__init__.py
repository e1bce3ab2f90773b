"""Policies: the algorithms that choose which rank runs next, by `choose(point, options)`."""
