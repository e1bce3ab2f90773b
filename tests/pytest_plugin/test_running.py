"""A marked test runs on every rank: what it gets, and what a failure looks like."""


def test_every_rank_runs_it_with_its_own_number(run):
    result = run("""
@pytest.mark.ranks(4)
def test_sum(rank, world_size):
    each = torch.tensor([rank + 1.0])
    dist.all_reduce(each)
    assert (world_size, each.item()) == (4, 10.0)
""")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*warning*")
