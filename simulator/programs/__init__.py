"""Programs as plain values: what each rank calls and waits for, without torch."""
