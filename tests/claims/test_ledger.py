"""What a ledger may hold, what is read for it, and what is written of it."""

import re

import pytest

from tests import shipped
from tests.claims.made import CLAIM, ledger
from tests.comparison.sides import known, side, write
from tests.comparison.sides import measured as cell
from tests.conftest import ROOT
from workflow_lib.claims import page
from workflow_lib.claims.__main__ import main
from workflow_lib.claims.ledger import judge
from workflow_lib.claims.measured import Measured, read
from workflow_lib.config import Claim, Ledger
from workflow_lib.records.reading import RecordError
from workflow_lib.records.verdict_tables import CLAIMS
from workflow_lib.study import ConfigError, load_ledger
from workflow_lib.table_files import read_table

SHIPPED = ROOT / "config" / "claims.yaml"
BESIDE = {"pair": {"model": "twin"}, "beside": {"model": "whole"}}
CONTRAST = {"measure": "tokens_per_s", "first": {"tp": 2}, "second": {"tp": 4}, "above": 1.0}


def test_the_shipped_ledger_has_every_claim_of_the_study_and_names_what_there_is():
    claims, study = load_ledger(SHIPPED).claims, shipped.study()
    of_study = [claim.id for claim in claims if claim.by == "study"]
    assert of_study == [f"C{number}" for number in range(1, 20)]
    assert all(claim.section for claim in claims if claim.by == "study")
    named = {
        name
        for claim in claims
        for test in claim.tests
        for which in (test.cells, test.first, test.second, test.pair, test.beside)
        for name in [which.get("model", ())]
    }
    models = {each for name in named for each in ((name,) if isinstance(name, str) else name)}
    assert models
    assert models <= study.models.keys()
    words = " ".join(claim.would_test for claim in claims)
    sweeps = {name for name in study.sweeps if name in words}
    assert {"parallelism", "microbatch", "optimisation", "evidence-one-gpu"} <= sweeps


def test_a_sweep_that_would_test_a_claim_has_runs_enough_for_an_interval():
    study = shipped.study()
    words = " ".join(claim.would_test for claim in load_ledger(SHIPPED).claims)
    named = {name for name in study.sweeps if re.search(rf"\b{name}\b(?!-)", words)}
    few = {name for name in named if study.sweeps[name].repeats < 3}
    # Three seeds are three profiled runs.
    assert few == {"kernel-time"}
    assert study.sweeps["kernel-time"].training.seed == (1, 2, 3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mesure": "x"}, "claims.0.tests.0.mesure: unknown key; did you mean 'measure'?"),
        ({"first": {"microbatch": 1}}, "'microbatch' is not an axis of cells; valid: "),
        ({"first": {"tp": "2"}}, "tp is '2', expected int"),
        ({"first": {"overlap": 1}}, "overlap is 1, expected bool"),
        ({"first": {"software": "x"}}, "'software' is not an axis of cells; valid: "),
        ({"first": {"stage_layers": 1}}, "stage_layers is 1, expected a list of int"),
        ({"first": {"tp": "any"}}, "tp is 'any', expected int"),
        ({"first": {"stage_layers": "all"}}, "'all', expected a list of int, or any"),
        ({"first": {"cool_down_limit_s": "all"}}, "'all', expected float, or any"),
        ({"first": {"stage_layers": ["17"]}}, "stage_layers is '17', expected int"),
        ({"first": {"gpu_uuids": [0]}}, "gpu_uuids is 0, expected str"),
        ({"first": {"tp": []}}, "tp is an empty list, which no cell has"),
        ({"second": {}}, "first and second go together"),
        ({"measure": "temperature"}, "'temperature' contrasts no cells; valid: tokens_per_s, "),
        ({"above": None}, "needs above, below or both"),
        ({"below": 0.9}, "nothing lies above 1 and below 0.9"),
        ({"sample_rate_hz": 10.0}, "measure slowdown and sample_rate_hz go together"),
        ({"gpus": ["rear", "front"]}, "gpus are two groups within a run"),
        ({"first": {}, "second": {}, "measure": "power_peak_w"}, "rests on sensors of power"),
        ({"first": {}, "second": {}, "choose": "best"}, "mean nothing without first and second"),
        (
            {"first": {}, "second": {}, "gpus": ["hottest", "front"], "measure": "power_mean_w"},
            "'power_mean_w' contrasts no GPUs; valid: ",
        ),
        (
            {
                "first": {},
                "second": {},
                "gpus": ["hottest", "coolest"],
                "measure": "temperature_mean_c",
            },
            "hotter by choice",
        ),
        ({"above": float("inf")}, "finite"),
        ({"pair": {"model": "x"}}, "pair and beside go together, and name the same axes"),
        ({"beside": {"model": "x"}}, "pair and beside go together, and name the same axes"),
        (BESIDE | {"pair": {"platform": "x"}}, "and name the same axes"),
        (BESIDE | {"pair": {"modl": "x"}}, "'modl' is not an axis of cells; valid: "),
        (BESIDE | {"beside": {"model": 8}}, "model is 8, expected str"),
        (
            BESIDE | {"first": {}, "second": {}},
            "pair and beside mean nothing without first and second, nor with choose: best",
        ),
        (BESIDE | {"choose": "best"}, "nor with choose: best"),
        (
            BESIDE | {"first": {}, "second": {}, "gpus": ["rear", "front"]},
            "pair and beside mean nothing without first and second",
        ),
        *(
            (BESIDE | {key: named}, "model tells the pairs apart: not in cells, first, second or ")
            for key, named in (
                ("cells", {"model": "twin"}),
                ("first", {"model": "twin"}),
                ("second", {"model": "twin"}),
                ("alike_but", ["model"]),
            )
        ),
        *(
            ({"pair": one, "beside": other}, "a cell could be in both pairs")
            for one, other in (
                ({"model": "whole"}, {"model": "whole"}),
                ({"model": ["twin", "whole"]}, {"model": "whole"}),
                ({"stage_layers": [5, 3]}, {"stage_layers": "any"}),
                ({"stage_layers": "any"}, {"stage_layers": [5, 3]}),
            )
        ),
    ],
)
def test_a_rule_that_cannot_be_applied_is_refused(changed, message):
    with pytest.raises(ConfigError) as refused:
        ledger(CONTRAST | changed)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "pairs",
    [
        BESIDE,
        {"pair": {"stage_layers": "any"}, "beside": {"stage_layers": []}},
        # One axis that excludes a cell is enough.
        {"pair": {"model": "x", "dp": 2}, "beside": {"model": ["x", "y"], "dp": 4}},
    ],
)
def test_pairs_that_exclude_each_other_are_a_rule(pairs):
    assert ledger(CONTRAST | pairs).claims[0].tests[0].pair == pairs["pair"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"no_rule": "none"}, "a claim has tests, or no_rule says why it has none"),
        ({"id": "c1"}, "claims.0.id: "),
        ({"verdict": "supported"}, "claims.0.verdict: unknown key"),
        ({"by": "me"}, "claims.0.by: "),
    ],
)
def test_a_claim_that_is_none_is_refused(changed, message):
    with pytest.raises(ConfigError) as refused:
        ledger(CONTRAST, **changed)
    assert message in str(refused.value)


def test_two_claims_of_one_name_are_refused(tmp_path):
    path = tmp_path / "claims.yaml"
    claim = "\n".join(f"    {key}: {value}" for key, value in CLAIM.items() if key != "id")
    one = f"  - id: X1\n{claim}\n    no_rule: None yet.\n"
    path.write_text(f"description: Made up.\nclaims:\n{one}{one}", encoding="utf-8")
    with pytest.raises(ConfigError, match="two claims are called X1"):
        load_ledger(path)


def sweep(directory, *values, began=1e9):
    """The tables of one cell whose runs have these throughputs."""
    of_cell = cell(known(), tokens_per_s=values)
    for run in of_cell[1]:
        run["started_unix_s"] = began + run["run"]
    return write(directory, of_cell)


def test_a_run_that_two_sweeps_show_counts_once(tmp_path):
    first = sweep(tmp_path / "a", 100.0, 101.0)
    second = sweep(tmp_path / "b", 100.0, 101.0, 102.0)
    (both,) = read([first, second])
    (of_cell,) = both.side.cells
    assert [run["tokens_per_s"] for run in both.completed(of_cell)] == [100.0, 101.0, 102.0]
    assert (of_cell["completed"], both.sweeps[of_cell["cell"]]) == (3, ["a", "b"])


@pytest.mark.parametrize("first", ["measured", "profiled"])
def test_a_profiled_run_of_another_sweep_counts(tmp_path, first):
    measured, profiled = (
        cell(known(), tokens_per_s=values) for values in ([100.0, 101.0, 102.0], [100.0])
    )
    profiled[0]["communication_kernel_share"] = 0.6
    for of_cell in (measured, profiled):
        for run in of_cell[1]:
            run["started_unix_s"] = 1e9 + run["run"]
    sweeps = {
        name: write(tmp_path / name, of_cell)
        for name, of_cell in (("measured", measured), ("profiled", profiled))
    }
    (both,) = read([sweeps.pop(first), *sweeps.values()])
    (of_cell,) = both.side.cells
    assert (of_cell["completed"], of_cell["communication_kernel_share"]) == (3, 0.6)


def test_two_sweeps_of_one_name_are_refused(tmp_path):
    first = sweep(tmp_path / "a", 100.0)
    with pytest.raises(RecordError, match="sweeps of one name"):
        read([first, sweep(tmp_path / "other" / "a", 100.0)])


def test_a_cell_measured_again_is_contrasted_with_the_cells_of_its_own_sweep(tmp_path):
    def pair(name, began, with_overlap, without):
        cells = [
            cell(known(overlap=on), tokens_per_s=of)
            for on, of in ((True, with_overlap), (False, without))
        ]
        for _, runs in cells:
            for run in runs:
                run["started_unix_s"] = began + run["run"]
        return write(tmp_path / name, *cells)

    # A host that is twice as fast: runs of one against runs of the other would hide the effect.
    first = pair("a", 1e9, [90.0, 91.0, 89.0], [100.0, 101.0, 99.0])
    again = pair("b", 2e9, [180.0, 182.0, 178.0], [200.0, 202.0, 198.0])
    test = {
        "measure": "tokens_per_s",
        "first": {"overlap": True},
        "second": {"overlap": False},
        "below": 1.0,
    }
    rows = judge(ledger(test), read([first, again]))
    assert [(row["sweeps_a"], row["sweeps_b"]) for row in rows] == [("a", "a"), ("b", "b")]
    assert [row["estimate"] for row in rows] == [pytest.approx(0.9, abs=1e-4)] * 2
    assert {row["claim_verdict"] for row in rows} == {"supported"}


def test_the_command_writes_a_table_and_pages_that_link_to_cells(tmp_path, capsys):
    results = tmp_path / "results"
    pair = [
        cell(known(overlap=on), tokens_per_s=of)
        for on, of in ((True, [90.0, 91.0, 89.0]), (False, [100.0, 101.0, 99.0]))
    ]
    directory = write(results / "sweeps" / "mine", *pair)
    output = results / "claims"
    arguments = [str(directory), "--claims", str(SHIPPED), "--output", str(output)]
    assert main(arguments) == 0
    assert set(read_table(output / "claims.parquet", CLAIMS)["basis"]) == {"measured"}
    rows = {row["claim"]: row for row in read_table(output / "claims.parquet", CLAIMS).to_dicts()}
    # It costs this pipeline speed, and no other part of the claim has values.
    assert rows["C13"]["test_verdict"] == "supported"
    assert rows["C13"]["claim_verdict"] == "not_testable"
    for name in ("claims.md", "claims.html"):
        text = (output / name).read_text(encoding="utf-8")
        assert "../sweeps/mine/report.html#cell=h200%2Fllama3-70b%2F" in text
    before = (output / "claims.md").read_bytes(), (output / "claims.parquet").read_bytes()
    assert main(arguments) == 0
    assert before == ((output / "claims.md").read_bytes(), (output / "claims.parquet").read_bytes())
    number = len(load_ledger(SHIPPED).claims)
    assert capsys.readouterr().out.startswith(f"{number} claims: 0 supported, 0 contradicted, ")


def test_the_nearest_question_is_told_with_its_own_verdict_and_judges_nothing(tmp_path):
    asked = Claim.model_validate(
        {
            "id": "C9",
            "by": "study",
            "says": "Of many nodes.",
            "needs": "Many nodes.",
            "would_test": "A sweep.",
            "no_rule": "It gives no size.",
            "nearest": ["X1"],
        }
    )
    (own,) = ledger(CONTRAST).claims
    both = Ledger(description="Two.", claims=(asked, own))
    pair = [
        cell(known(tp=tp), tokens_per_s=of)
        for tp, of in ((2, [100.0, 101.0, 99.0]), (4, [80.0, 81.0, 79.0]))
    ]
    rows = judge(both, read([write(tmp_path / "mine", *pair)]))
    ((other, (entry,)),) = page.near(page.entries(both, rows, lambda sweep, cell: ""))
    assert (entry.claim.id, entry.verdict, entry.counts) == ("C9", "not testable here", "")
    assert (other.claim.id, other.verdict, other.counts) == ("X1", "supported", "1 supported")


@pytest.mark.parametrize("others", [["X1"], ["C2"], ["C3"]], ids=["itself", "no rule", "none"])
def test_a_nearest_question_has_a_rule_of_its_own(others):
    (own,) = ledger(CONTRAST).claims
    alone = own.model_copy(update={"id": "C2", "tests": (), "no_rule": "None."})
    with pytest.raises(ValueError, match=f"nearest of X1: {others[0]}"):
        Ledger(description="Two.", claims=(own.model_copy(update={"nearest": (*others,)}), alone))


def test_text_of_others_stays_text(tmp_path):
    hostile = "<script>alert(1)</script> | [x](y)"
    claims = ledger(CONTRAST, says=hostile, needs=hostile, would_test=hostile, section=hostile)
    rows = judge(claims, [Measured(side("none"))])
    plain = page.markdown(claims, rows, lambda sweep, cell: "")
    assert "<script" not in plain
    assert plain.count("&lt;script>alert(1)&lt;/script> \\| \\[x](y)") == 4
    assert "<script" not in page.html(claims, rows, lambda sweep, cell: "")


def test_a_directory_without_tables_is_one_message(tmp_path, capsys):
    arguments = [str(tmp_path), "--claims", str(SHIPPED), "--output", str(tmp_path / "out")]
    assert main(arguments) == 1
    expected = "has no cells.parquet: expected the directory of a sweep that was run"
    assert f"{tmp_path} {expected}" in capsys.readouterr().err
    sweep(tmp_path / "sweeps" / "mine", 1.0)
    arguments[0] = str(tmp_path / "sweeps" / "mne")
    assert main(arguments) == 1
    assert "results/sweeps/<sweep>; did you mean 'mine'?" in capsys.readouterr().err
    arguments[0] = str(tmp_path)
    arguments[2] = str(tmp_path / "none.yaml")
    assert main(arguments) == 1
    assert "none.yaml: cannot be read" in capsys.readouterr().err
