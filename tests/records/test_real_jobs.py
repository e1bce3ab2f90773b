"""Real jobs on gloo: scenarios of the zoo hang in processes, and torch's own recorder has what is diagnosed."""

import json

import pytest

from ddpsim.scenarios import load
from tests.records import on_gloo

SAMPLE = (
    "uneven-inputs-without-join",
    "op-type-differs",
    "cross-group-order-inversion",
    "rank0-eval-through-wrapper-with-buffers",
    "sync-batchnorm-not-entered-alike",
)


def recorded():
    return on_gloo.rows(json.loads(on_gloo.RESULTS.read_text()))


def test_diagnose_blames_whom_the_simulation_blames_in_nine_of_ten():
    rows = recorded()
    shown = [row for row in rows if not row.lacks]
    assert len(shown) >= 40
    assert sum(row.is_same for row in shown) >= 0.9 * len(shown)


def test_where_a_record_cannot_show_it_nobody_else_is_blamed_for_a_mismatch():
    for row in recorded():
        wrong = [code for code, ranks in row.diagnosed if code.startswith("mismatch.") and ranks != row.simulated[1]]
        assert wrong == [], row


def test_the_page_is_made_of_the_results():
    # If not: python -m tests.records.on_gloo FOLDER
    text = on_gloo.PAGE.read_text(encoding="utf-8")
    assert on_gloo.page(text, on_gloo.table(recorded())) == text


@pytest.mark.tier("nightly")
def test_a_real_dump_blames_whom_the_simulation_blames(tmp_path):
    on_gloo.run(tmp_path, SAMPLE)
    rows = on_gloo.rows({name: on_gloo.result_of(tmp_path / name, load(name)) for name in SAMPLE})
    assert [(row.name, row.is_same) for row in rows] == [(name, True) for name in sorted(SAMPLE)]
