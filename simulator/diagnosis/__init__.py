"""Diagnosis: why a simulated run stopped, computed from recorded values alone. It uses no torch and no thread."""
