"""Files of the user's in the place of our packages, as far as they are in the way of a session of pytest."""

from __future__ import annotations

import pytest

from scenarios.names import OWN_PACKAGES, shadow


def shadow_in(config: pytest.Config) -> str:
    """A line about the first, or "". Without a report, a `reports.py` of the user's is in nobody's way."""
    has_report = config.getoption("ddpsim_report") is not None
    return shadow([name for name in OWN_PACKAGES if has_report or name != "reports"])
