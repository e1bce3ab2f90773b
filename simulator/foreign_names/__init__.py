"""One table of the names of torch, Python and other libraries that ddpsim replaces, hooks or reads.

`table.txt` is the table, `names.py` says what it says, and `checking.py` compares it with the versions at hand. What
replaces names is `simulator/runtime/replaced.py`. `tests/architecture/test_foreign_names.py` names what lacks a row.
"""
