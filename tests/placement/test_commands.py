"""The commands, on what was measured on two H200."""

import polars as pl
import pytest
import yaml

from tests.conftest import ROOT
from tests.texts import lacking, numbers
from workflow_lib.archive.rebuild import rebuild
from workflow_lib.placement import __main__ as command
from workflow_lib.placement.sweep import PlacementRecord
from workflow_lib.records.files import read_record
from workflow_lib.records.paths import SweepPaths
from workflow_lib.records.tables import PLAN
from workflow_lib.report.figures.tables import read_tables
from workflow_lib.report.predictions import predictions
from workflow_lib.table_files import read_table

CELL = "h200x2/llama3-8b/tp1-pp2-dp1_mb1-gb8-bf16-zero1-compiled-torch_d47963b9"


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    """The directories of the two sweeps of pipelines on the same two GPUs."""
    found = {}
    for name in ("slots", "stages"):
        into = tmp_path_factory.mktemp(name)
        sweep = f"evidence-{name}-x2"
        rebuild(ROOT / "evidence" / f"{sweep}.zip", into / "rebuilt", ROOT, 1e9)
        found[name] = into / "rebuilt" / "results" / "sweeps" / sweep
    return found


@pytest.mark.long
def test_gpus_are_listed_as_a_table_a_figure_and_a_page(sweeps, tmp_path, capsys):
    assert command.main(["slots", str(sweeps["slots"]), "--output", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert lacking(said, "No GPU is ", " 2.0 % ") == []
    rows = pl.read_parquet(tmp_path / "slots.parquet").to_dicts()
    # By hand from capped_clock_share: ln of the mean over both stages of 0.8412 / 0.8259 and of
    # 0.7910 / 0.7821, halved.
    assert rows[0]["clock_effect"] == pytest.approx(0.0075, abs=2e-4)
    assert rows[0]["temperature_effect_c"] == pytest.approx(-3.84, abs=0.02)
    assert (tmp_path / "figures" / "slots.svg").is_file()
    # The figure is in the page, and so is each GPU's row.
    page = (tmp_path / "slots.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 1
    assert f"{rows[0]['node']} GPU {rows[0]['gpu']}" in page


@pytest.mark.long
def test_a_placement_is_written_as_a_sweep_and_holds_where_it_was_tried(sweeps, tmp_path, capsys):
    arguments = ["place", str(sweeps["slots"]), "--cell", CELL, "--output", str(tmp_path)]
    arguments += ["--config", str(ROOT / "config"), "--write", str(tmp_path / "placed.yaml")]
    assert command.main(arguments) == 0
    first, *_ = capsys.readouterr().out.split(" layers")
    assert first.startswith("Place it")
    assert numbers(first) == [0, 1, 17, 15]
    placement = read_record(tmp_path / "placement.json", PlacementRecord)
    assert placement.cell == CELL
    assert placement.gpus["vm GPU 0"].startswith("GPU-7a82a48a")
    matrix = yaml.safe_load((tmp_path / "placed.yaml").read_text(encoding="utf-8"))["matrix"]
    assert "stage_layers" not in matrix[0]
    assert matrix[1]["stage_layers"] == [17, 15]
    assert matrix[1]["gpu_uuids"] == [*placement.gpus.values()]
    assert matrix[1]["predicted"]["against"] == CELL
    gain = placement.time_gain
    ends = [gain.estimate, gain.low, gain.high]
    assert matrix[1]["predicted"]["time_gain"] == pytest.approx(ends, abs=1e-4)
    # Another sweep is not written over.
    (tmp_path / "placed.yaml").write_text("other", encoding="utf-8")
    assert command.main(arguments) == 1
    assert f"{tmp_path / 'placed.yaml'}" in capsys.readouterr().err

    # The runs that tried it, in the report of their sweep.
    plan = read_table(SweepPaths(sweeps["stages"]).plan, PLAN).to_dicts()
    gains = {
        f"predicted_{name}{end}": value
        for name in ("time_gain", "energy_gain")
        for end, value in zip(("", "_low", "_high"), matrix[1]["predicted"][name], strict=True)
    }
    for row in plan:
        if row["cell"] != CELL:
            row |= gains | {"predicted_against": CELL}
    labels = {row["cell"]: row["cell"] for row in plan}
    found = predictions(plan, read_tables(sweeps["stages"]), labels)
    # By hand, of medians over three runs each: 1 − 3.4747 / 3.6106, and 1 − 4443.2 / 4534.0.
    assert [line["measured"].split(" (")[0] for line in found] == ["3.8 %", "2.0 %"]
    assert [line["verdict"] for line in found] == ["holds", "holds"]


def test_a_sweep_that_was_not_run_says_what_to_do(tmp_path, capsys):
    assert command.main(["slots", str(tmp_path / "none"), "--output", str(tmp_path)]) == 1
    assert str(tmp_path / "none") in capsys.readouterr().err
