"""Debuggers in ranks: what pdb finds there, and the commands that look at all ranks of an execution.

A debugger runs where the program stands that it looks into: on the thread of a rank, or in its process. What it
writes and reads goes to whoever started the execution, and what it asks of the others is answered from a plain view of
the kernel's state (`answers.py`). While it has the word nobody else runs, and no limit does.
"""
