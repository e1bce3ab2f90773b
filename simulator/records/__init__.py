"""Diagnosis of the records (flight recorder dumps, clogs) that real jobs leave, with the simulator's own values.

Nothing here does input or output: bytes come in, findings go out.
"""
