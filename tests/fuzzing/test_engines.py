"""Both engines against the oracle, and each other, for as long as `--fuzz-seconds` says; nothing must be found.

Two seconds belong to every run of the suite, a minute to its nightly form. The seed is always 0, so the next run finds
it again; what was found stands in the failure's text as a file.
"""

from ddpsim.scenarios.fuzzing.campaign import End, run_campaign
from ddpsim.scenarios.fuzzing.plan import Plan
from ddpsim.scenarios.fuzzing.summary import summary
from ddpsim.scenarios.strategies.whole import Kind


def test_nothing_is_found(pytestconfig, tmp_path):
    seconds = pytestconfig.getoption("--fuzz-seconds")
    campaign = run_campaign(Plan(kinds=(Kind.TRAINING,)), seconds=seconds, corpus=tmp_path)
    texts = [path.read_text() for path in sorted(tmp_path.glob("*.toml"))]
    assert not campaign.has_found, "\n\n".join([summary(campaign), *texts])
    assert campaign.end is End.BUDGET
    assert campaign.totals.count > 0
