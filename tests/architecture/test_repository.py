"""What the repository has for its host: workflows with pinned actions and few rights, forms, and one version."""

import re
from pathlib import Path

import pytest
import yaml

from ddpsim.scenarios.files.toml_source import tomllib

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(each for each in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if each.name != "config.yml")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_and_jobs_have_only_the_rights_that_they_name(path):
    text = path.read_text(encoding="utf-8")
    used = re.findall(r"uses: (\S+) # v[\d.]+\n", text)
    assert len(used) == text.count("uses: ")
    assert [each for each in used if not re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", each)] == []
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {}
    assert all("permissions" in job and "timeout-minutes" in job for job in workflow["jobs"].values())
    written = {
        name: path.name for job in workflow["jobs"].values() for name, to in job["permissions"].items() if to == "write"
    }
    assert set(written.values()) <= {"release.yml"}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_forms_ask_for_what_the_doctor_prints(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert "What `ddpsim doctor` prints" in [field["attributes"]["label"] for field in form["body"]]


def test_the_citation_has_the_version_and_the_licence_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
