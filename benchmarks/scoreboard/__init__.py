"""How well tools find what is wrong with programs of torch.distributed: made by `python -m benchmarks.scoreboard`."""
