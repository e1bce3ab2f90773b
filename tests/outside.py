"""What pip does not bring: a test that needs it is skipped where it is missing, with the reason, and fails in CI."""

from __future__ import annotations

import importlib.util
import os
import shutil

import pytest

IN_CI = bool(os.environ.get("CI"))
"""As this session was started: pages are run without it."""

PACKAGES = {"chromium": "chromium", "dot": "graphviz"}
"""Commands that tests need, and Debian's packages that have them: .ci/run installs these."""


FRAMEWORKS = ("accelerate", "ignite", "lightning", "torchft", "torchmetrics", "transformers")
"""What is imported of the extra `frameworks`, which CI does not install."""


def not_installed(*modules: str) -> str | None:
    """Why a test cannot run that imports some of them; None if all are there."""
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} not installed: pip install 'ddpsim[frameworks]'" if absent else None


def missing(command: str) -> str | None:
    """Why a test cannot run that needs one of the commands; None if it can."""
    return None if shutil.which(command) else f"{command} is missing (Debian's package {PACKAGES[command]})"


def do_without(reason: str | None) -> None:
    """Skip the test if there is a reason; in CI it fails."""
    if reason is not None:
        (pytest.fail if IN_CI else pytest.skip)(reason)
