"""Real jobs on this machine, started with the recorder on, watched, and ended when nothing moves."""
