"""pdb inside ranks: the debugger itself, and its commands that show all ranks of a run.

A debugger runs on the thread, or in the process, of the rank that it debugs. The thread that started the run reads its
input and writes its output. While a debugger is open, no other rank runs and the time limits are paused.
"""
