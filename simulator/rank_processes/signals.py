"""The signals by which the coordinator speaks to a rank that runs: real-time ones, which no program uses for itself."""

import signal

TELL_STACK = signal.SIGRTMIN + 11
"""Write where the running thread stands into a file, by Python."""
TELL_NATIVE_STACK = signal.SIGRTMIN + 12
"""Write the stacks of all threads into the file, without Python's help, as a program in native code needs it."""
UNWIND_PROGRAM = signal.SIGRTMIN + 13
"""Leave the program, by an exception in the main thread."""
