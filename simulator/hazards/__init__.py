"""What passes in this run and may hang, or give wrong numbers, under another backend or schedule."""
