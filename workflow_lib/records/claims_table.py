"""Every column of the table of verdicts.

``docs/reference/columns.md`` is made from this.
"""

from __future__ import annotations

from workflow_lib.records.columns import columns

#: claims.parquet: one row a contrast by which a claim is judged; where a test found no cells, and
#: where a claim has no test, one row that says so
CLAIMS = columns(
    ("claim", str, "", "the claim's id in config/claims.yaml"),
    ("by", str, "", "whose it is: study, triptych or reviewers"),
    ("says", str, "", "the claim, in words"),
    ("test", int, "", "which of the claim's tests, from 1; null where it has none"),
    ("part", str, "", "what of the claim the test is of; null where that is all of it"),
    (
        "basis",
        str,
        "",
        "measured: of runs; projected: of planned cells, none of which has run",
    ),
    ("measure", str, "", "the measure that is contrasted"),
    (
        "contrast",
        str,
        "",
        "ratio (first over second) or difference (first − second); value (the measure itself)",
    ),
    ("above", float, "", "where the claim says that the contrast lies; null without an end"),
    ("below", float, "", "the same"),
    ("holds_in", str, "", "all or any: of how many contrasts the claim speaks"),
    ("verdict", str, "", "supported, contradicted, undecided or not_testable: by this contrast"),
    ("test_verdict", str, "", "the same, by all contrasts of the test"),
    ("claim_verdict", str, "", "the same, by all tests of the claim"),
    ("in_words", str, "", "the contrast, its interval and why"),
    ("model", str, "", "name of config/models/<model>.yaml"),
    ("cell_a", str, "", "the first cell, or the one that was looked at"),
    ("cell_b", str, "", "the second cell; null where there is one alone"),
    ("label_a", str, "", "short name of the first cell"),
    ("label_b", str, "", "short name of the second cell"),
    ("platform_a", str, "", "platform of the first cell"),
    ("platform_b", str, "", "platform of the second cell"),
    ("sweeps_a", str, "", "the sweeps that show the first cell, separated by commas"),
    ("sweeps_b", str, "", "the sweeps that show the second cell"),
    ("runs_a", str, "", "the completed runs of the first cell, by number"),
    ("runs_b", str, "", "the completed runs of the second cell"),
    ("simulated", bool, "", "whether GPU readings were simulated"),
    ("estimate", float, "", "as in comparison.parquet"),
    ("low", float, "", "lower end of the interval that the runs support"),
    ("high", float, "", "upper end of the same"),
    ("coverage", float, "", "of the interval; null where the ends are a range alone"),
    (
        "wide_low",
        float,
        "",
        "lower end with what dates, nodes and sensors may do: the verdict is by it",
    ),
    ("wide_high", float, "", "upper end of the same"),
    ("assumes", str, "", "what the interval takes for granted"),
    ("missing_reasons", str, "", "JSON: column → why it is null"),
)
