"""Does the simulator agree with real gloo? Random programs, run on both, compared."""
