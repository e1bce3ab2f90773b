"""Make a failing scenario simpler: fewer ranks, iterations or calls, simpler options, fewer context switches."""
