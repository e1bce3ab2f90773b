"""Documents, made from what the simulator returns: `result.document_of` and `exploration.document_of_exploration`."""
