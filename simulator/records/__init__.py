"""Read the records that real jobs leave into the simulator's own values, and diagnose them. Pure: bytes in, findings
out.
"""
