"""Records that real jobs leave, read to the simulator's own values, and diagnosed. Pure: bytes in, findings out."""
