"""Both engines against the oracle, and each other, in drawn trainings; nothing must be found.

Twelve runs belong to every run of the suite, and more to its nightly form, which goes on for a minute besides, or for
as long as `--fuzz-seconds` says. The seeds are always the same, so the next run finds it again; what was found
stands in the failure's text as a file.
"""

import pytest

from ddpsim.scenarios.fuzzing.campaign import CampaignEnd, campaign_summary, run_campaign
from ddpsim.scenarios.fuzzing.plan import CampaignPlan
from ddpsim.scenarios.fuzzing.strategies.whole import Kind
from tests.tiers import sweep


@pytest.mark.parametrize(
    ("seed", "executions"), sweep([(0, None), (10_000, 80), (20_000, 1400)], lambda each: each[0] == 0)
)
def test_nothing_is_found(pytestconfig, tmp_path, seed, executions):
    seconds = pytestconfig.getoption("--fuzz-seconds") if executions is None else None
    executions = executions or (12 if seconds is None else None)
    plan = CampaignPlan(seed, kinds=(Kind.TRAINING,), executions=executions)
    campaign = run_campaign(plan, seconds=seconds or 3600, corpus=tmp_path)
    texts = [path.read_text() for path in sorted(tmp_path.glob("*.toml"))]
    assert not campaign.has_failures, "\n\n".join([campaign_summary(campaign), *texts])
    assert campaign.end is CampaignEnd.BUDGET
    assert campaign.totals.execution_count >= (executions or 1)
