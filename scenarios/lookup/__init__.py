"""How a scenario is found: by its name in the registry, or in a file."""
