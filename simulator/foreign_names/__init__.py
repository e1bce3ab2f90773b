"""One table of the names of torch, Python and other libraries that ddpsim replaces, hooks or reads ("foreign names").

`table.txt` is the table, `names.py` parses it, and `checking.py` compares it with the installed versions.
`simulator/runtime/replaced.py` replaces names. `tests/architecture/test_foreign_names.py` finds names without a row.
"""
