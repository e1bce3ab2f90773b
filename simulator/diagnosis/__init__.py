"""Diagnosis: why a run stopped, from frozen values alone. Pure: no torch, no thread."""
