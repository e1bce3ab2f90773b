"""Each test file passes in a session of its own: no test relies on what another file imported or left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FILES = sorted(str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py") if path != Path(__file__))
NONE_COLLECTED = 5  # a file whose tests all belong to another tier


@pytest.mark.tier("nightly")
@pytest.mark.parametrize("tier", [(), ("--tier", "ci")], ids=["default", "ci"])
@pytest.mark.parametrize("file", FILES)
def test_a_file_passes_in_a_session_of_its_own(file, tier):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tier, str(TESTS / file)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ended = subprocess.run(
        command,
        cwd=TESTS.parent,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ended.returncode in (0, NONE_COLLECTED), (
        f"{' '.join(command)}\n{ended.stdout[-4000:]}\n{ended.stderr[-2000:]}"
    )


def test_the_files_are_found():
    assert "test_files_alone.py" not in FILES
    assert {"test_tiers.py", "pytest_plugin/test_isolation.py"} <= set(FILES)
