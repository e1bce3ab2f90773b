"""Policies: the algorithms that choose which rank runs next. A policy has a method `choose(point, options)`."""
