"""Ends a training program at each of its operations, lets it resume, and judges what comes of it.

The program runs undisturbed, twice, to see that it repeats itself. Then it runs once for each point: a rank is killed,
or a file is only half written, or another `Strike` hits; then all ranks start again, as by torchrun, on what the first
attempt has left on the disk. Each run begins with a copy of the working folder. A killed rank leaves files and nothing
else, so of the points of a rank between which no file changes, only the first is tried; of exceptions and SIGTERM,
those at other lines, too.
"""
