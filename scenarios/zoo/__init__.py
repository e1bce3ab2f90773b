"""Real bugs, by theme: programs that show them, where they were reported, what is found, and their repaired twins."""
