"""Diagnosis of the records that real jobs leave, as values of the simulator. Pure: bytes in, findings out."""
