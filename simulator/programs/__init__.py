"""Programs as plain values: what each rank calls and waits for. Nothing in here calls torch."""
