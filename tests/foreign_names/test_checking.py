"""The table compared with the versions at hand: what is missing or otherwise is said, and what fits is not."""

import pytest

from ddpsim.simulator.foreign_names.checking import find_mismatches
from ddpsim.simulator.foreign_names.names import parse_table

FITS = """
[always] a test
read      threading.Thread _target _daemonic start (self)
read      threading.Condition _lock
read      multiprocessing.context ForkProcess._Popen (process_obj)
read      multiprocessing.spawn._main _inheriting
read      time sleep (no_function_of_c_has_a_signature)
replaced  subprocess Popen (args bufsize * env cwd)
replaced  torch.nn.Module register_forward_hook (self hook * prepend)
added     torch.cuda no_such_name
read      torch.cuda no_such_name since torch 99.0
read      threading no_such_name until python 3.2
read      no_such_library_is_installed.module name
frame     torch.nn.parallel.distributed main_hook _match_all_reduce_for_bwd_pass (self)
frame     queue __init__ (maxsize)
frame     argparse error (text|message)
"""

MISFITS = {
    "read      threading no_such_name": "threading.no_such_name: no_such_name is missing",
    "replaced  threading.Thread no_such_name": "threading.Thread.no_such_name: no_such_name is missing",
    "read      threading.NoThread start": "threading.NoThread.start: threading.NoThread is missing (module 'threading' "
    "has no attribute 'NoThread')",
    "replaced  torch.no_such_module name": "torch.no_such_module.name: torch.no_such_module is missing (module 'torch' "
    "has no attribute 'no_such_module')",
    "replaced  threading.Thread join (self seconds)": "threading.Thread.join: takes (self, timeout), expected "
    "(self, seconds)",
    "replaced  threading.Thread join (self * group)": "threading.Thread.join: takes (self, timeout), expected "
    "(self, *, group)",
    "frame     queue no_such_function": "queue.no_such_function: queue has no function no_such_function",
    "frame     queue __init__ (self no_such_local)": "queue.__init__: __init__ has no local variable no_such_local",
    "frame     torch.no_such_module function": "torch.no_such_module.function: torch.no_such_module is missing "
    "([Errno 2] No such file or directory: ",
    "read      threading no_such_name since torch 2.0 until torch 99.0": "threading.no_such_name: no_such_name is "
    "missing",
    "read      multiprocessing.spawn._main _no_such_name": "multiprocessing.spawn._main._no_such_name: _no_such_name "
    "is missing",
}


def test_what_fits_is_not_told():
    assert find_mismatches(parse_table(FITS)) == []


def test_what_does_not_fit_is_told():
    told = {line: find_mismatches(parse_table(f"[ranks] a purpose\n{line}")) for line in MISFITS}
    assert {line: len(found) for line, found in told.items()} == dict.fromkeys(MISFITS, 1)
    for line, (found,) in told.items():
        assert f"{found.name}: {found.problem}".startswith(MISFITS[line])
        assert (found.row.where, found.row.why) == ("ranks", "a purpose")


def test_a_line_that_is_no_row_is_refused():
    for line in (
        "replaced  threading",
        "replaces  threading Lock",
        "read threading Lock (self",
        "read a b since torch",
    ):
        with pytest.raises(ValueError, match=r"foreign_names/table.txt has|is not a valid NameUse"):
            list(parse_table(line))
