"""Makes documents: `result_document` makes one of a run's result, `exploration_document` one of an exploration."""
