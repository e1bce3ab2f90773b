"""Which line of the program, or which wrapper, phase, bucket and step of an engine, a call belongs to."""
