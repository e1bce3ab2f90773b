"""Real processes: a scenario with one process a rank, on real gloo, free-running."""
