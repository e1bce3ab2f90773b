"""What Pythons import as they begin that a rank or a launcher has started: it stands alone, and imports no torch."""
