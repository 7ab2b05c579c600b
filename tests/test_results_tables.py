"""Tables of the pages in docs/results."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import parts, verdicts
from tests.report.sweep import Planned, write_sweep
from workflow_lib.comparison.sides import read_side

MFU = {
    "bf16": {"mfu_causal": 0.5, "mfu_causal_bf16_peak": 0.5},
    "fp8": {"mfu_causal": 0.3, "mfu_causal_bf16_peak": 0.6},
}


def test_a_page_with_fp8_names_the_peak_of_each_mfu(tmp_path: Path) -> None:
    cells = [
        Planned("tp1", options=each, training={"precision": each}, measures=MFU[each])
        for each in ("bf16", "fp8")
    ]
    side = read_side(write_sweep(tmp_path, cells), "made-up")

    both = parts.table_of(side, side.cells)
    assert "| MFU, causal, of the precision's peak, % | MFU, causal, of the bf16 peak, % |" in both
    assert "| 30.00 | 60.00 |" in both
    of_bf16 = parts.table_of(side, [cell for cell in side.cells if cell["precision"] == "bf16"])
    assert "| MFU, causal, % | runs |" in of_bf16
    assert "of the bf16 peak" not in of_bf16


@pytest.mark.parametrize(
    ("commits", "changed", "said"),
    [
        ("a" * 40, "False", "The commit that runs recorded is aaaaaaaaaaaa."),
        (
            "a" * 40,
            "–",  # not known
            "The commit that runs recorded is aaaaaaaaaaaa, perhaps with uncommitted changes, so "
            "it does not identify the code.",
        ),
        (
            "a" * 40,
            "True",
            "The commit that runs recorded is aaaaaaaaaaaa, with uncommitted changes, so it does "
            "not identify the code.",
        ),
        (
            f"{'a' * 40}, {'b' * 40}",
            "True, False",
            "The commits that runs recorded are aaaaaaaaaaaa, bbbbbbbbbbbb, in some with "
            "uncommitted changes, so they do not identify the code of these.",
        ),
    ],
)
def test_a_page_names_every_commit_that_its_runs_recorded(commits, changed, said) -> None:
    assert parts.code_in_words({"commit": commits, "uncommitted_changes": changed}) == said


def test_runs_of_two_days_begin_and_end_with_their_dates() -> None:
    run = {"outcome": "completed", "started_unix_s": 1_700_000_000.0}
    late = run | {"started_unix_s": 1_700_010_000.0}
    other = run | {"started_unix_s": 1_700_100_000.0}
    first = "2023-11-14 22:13"
    assert parts.runs_in_words([run]).endswith(f"{first} to 22:13 UTC)")
    assert parts.runs_in_words([late, run]).endswith(f"{first} to 2023-11-15 01:00 UTC)")
    assert parts.runs_in_words([other, run]).endswith(f"{first} to 2023-11-16 02:00 UTC)")


@pytest.mark.parametrize(
    ("agree", "others", "said"),
    [(1, 0, "1 contrast"), (4, 0, "4 contrasts"), (6, 2, "6 of 8 contrasts")],
)
def test_a_finding_counts_the_contrasts_that_have_its_verdict(agree, others, said):
    rows = [{"claim_verdict": "contradicted", "verdict": "contradicted"}] * agree
    rows += [{"claim_verdict": "contradicted", "verdict": "supported"}] * others
    assert verdicts.decided_by(rows) == said
