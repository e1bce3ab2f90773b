"""A failing scenario made simpler: fewer ranks, fewer iterations or calls, plainer options, fewer switches."""
