"""Real bugs, one a file: a program that shows it, where it was reported, what is found, and its repaired twin."""
