"""Programs as plain values: the calls and waits of each rank. Nothing here calls torch."""
