"""Runs test suites that were not written for ddpsim (`pytest --ddpsim`): the ranks of each test are simulated.

`plugin.py` runs each test and reports it. `ranks_of_test.py` runs the ranks that a test starts. The other modules adapt
one way to start ranks each: torch's own base classes, processes of multiprocessing, and commands such as torchrun.
"""
