"""Programs with a world, faults and an expectation; and the shell around them.

Levels 6 and 7 of the layout. Level 6 may import everything below: the scenario model and its loader, the registry, the
runner, the oracle (plain single-process training to compare numbers with), small networks, and the zoo of real bugs.
Level 7, which nothing imports, is the shell: the `ddpsim` command line and the pytest plugin.
"""
