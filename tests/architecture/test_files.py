"""The repository is the same on every machine: no file names a package registry or a path of one machine."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.kit.rows import rows

ROOT = Path(__file__).resolve().parents[2]

# The patterns are written so that they do not match themselves.
REGISTRY = re.compile(
    r"\b(?:pypi|anaconda|conda|npmjs|docker|ghcr|quay|crates)\.(?:org|com|io)\b"
    r"|pythonhosted[.]org|download[.]pytorch|proxy[.]golang|--(?:extra-)?index[-]url|--find[-]links|trusted[-]host"
)
MACHINE_PATH = re.compile(r"(?<![\w.*~})\]-])/(?:home|Users|root|work|opt|mnt)/\w|\b[A-Z]:\\Users\b")


def shared_files() -> list[Path]:
    """The files that are, or with the next commit would be, in the repository."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs a git checkout: {error}")
    return [ROOT / name for name in sorted(filter(None, listing.split("\0")))]


@pytest.mark.parametrize(
    "pattern",
    [pytest.param(REGISTRY, id="registry"), pytest.param(MACHINE_PATH, id="machine-path")],
)
def test_no_file_names(pattern):
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in shared_files()
        if path.is_file()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert found == []


@rows(
    ("pattern", "line"),
    [
        (REGISTRY, "see https://files." + "pythonhosted" + ".org/x"),
        (REGISTRY, "pip install " + "--index" + "-url somewhere"),
        (REGISTRY, "https://" + "pypi" + ".org/simple"),
        (MACHINE_PATH, "open('/" + "home/me/model.pt')"),
        (MACHINE_PATH, "cd /" + "work/main"),
    ],
)
def test_patterns_find_what_they_look_for_and_no_other_paths(pattern, line):
    assert pattern.search(line)
    for other in ("#!/usr/bin/env bash", "https://example.com/" + "work/x", "a/" + "home/b", "docs/" + "rooted/index"):
        assert not MACHINE_PATH.search(other)
