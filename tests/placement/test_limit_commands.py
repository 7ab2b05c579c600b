"""Limits from the command line: the sweep that tries them, and where it is refused."""

import json
import statistics

import pytest
import yaml

from tests.conftest import ROOT
from tests.placement.made_limits import Node
from tests.texts import lacking
from workflow_lib.cells import expand_study
from workflow_lib.placement import __main__ as command
from workflow_lib.placement.sweep import PlacementRecord
from workflow_lib.records.files import read_record
from workflow_lib.study import load_study

LEVELS = (400, 500, 600, 700)


def example():
    """The matrix of the how-to."""
    page = (ROOT / "docs" / "how-to" / "find-slow-gpus.md").read_text(encoding="utf-8")
    section = page.partition("## Ask whether limits pay")[2]
    return yaml.safe_load(section.partition("```yaml")[2].partition("```")[0])["matrix"]


@pytest.fixture
def study(study_directory, edit):
    """The how-to's sweep, on a platform that allows settings; its file, and its cells."""
    edit("platforms/h200x4.yaml", "telemetry: nvidia", "telemetry: nvidia\ngpu_settings: allowed")
    path = study_directory / "sweeps" / "slots.yaml"
    slots = yaml.safe_load(path.read_text(encoding="utf-8"))
    # Interleaved, so that layers cannot move and stages wait for the one with the head.
    matrix = [entry | {"virtual_stages": 2, "global_batch_size": 128} for entry in example()]
    limits = slots | {"platforms": ["h200x4"], "matrix": matrix, "exclude": []}
    # Means nothing in the cell that is placed, so that its sweep cannot have it.
    limits["training"]["lora_rank"] = 8
    matrix.append(matrix[-1] | {"workload": "lora"})
    for other in (study_directory / "sweeps").iterdir():
        other.unlink()
    (study_directory / "sweeps" / "limits.yaml").write_text(yaml.safe_dump(limits))
    return study_directory


def planned(directory):
    cells = expand_study(load_study(directory))["limits"].cells
    return [each for each in cells if each.cell.training.workload == "pretrain"]


def test_the_example_plans_each_order_and_each_level(study):
    cells = planned(study)
    assert [each.reason for each in cells] == [None] * 7
    assert len({each.cell.degrees.gpu_order for each in cells}) == 4
    limits = [each.cell.training.power_limits_w for each in cells[4:]]
    assert limits == [(watts,) * 4 for watts in (600, 500, 400)]


@pytest.fixture
def place(study, tmp_path, monkeypatch):
    """Runs the command over made-up runs of the sweep; returns the exit code."""
    cells = [each.cell for each in planned(study)]
    measured = Node([0.0] * 4).measured(cells)
    monkeypatch.setattr(command.readings, "read", lambda directory: measured)

    def run():
        arguments = ["place", "limits", "--cell", cells[0].id, "--output", str(tmp_path)]
        arguments += ["--config", str(study), "--write", str(tmp_path / "placed.yaml")]
        return command.main(arguments)

    return run


def test_limits_are_written_as_a_sweep_whose_runs_are_found(place, study, tmp_path, capsys):
    assert place() == 0
    said = capsys.readouterr().out
    before, after = yaml.safe_load((tmp_path / "placed.yaml").read_text(encoding="utf-8"))["matrix"]
    assert "power_limits_w" not in before
    # The last stage has the head, and the others wait for it.
    *others, last = after["power_limits_w"]
    assert last == 700
    assert max(others) < 690
    shown = [", ".join(map(str, each)) + " W" for each in (after["power_limits_w"], LEVELS)]
    assert lacking(said, "Limit GPUs: ", *shown) == []
    placement = read_record(tmp_path / "placement.json", PlacementRecord)
    assert placement.recommended
    assert placement.power_limits_w == tuple(after["power_limits_w"])
    assert placement.clock_limits_mhz is None
    assert placement.energy_gain.low > 0.005

    (study / "sweeps" / "limits.yaml").unlink()
    (study / "sweeps" / "placed.yaml").write_bytes((tmp_path / "placed.yaml").read_bytes())
    (sweep,) = expand_study(load_study(study)).values()
    cells = [each.cell for each in sweep.cells]
    assert [each.id for each in cells] == [placement.cell, placement.placed_cell]
    node = Node([0.0] * 4)
    tried = node.measured(cells)
    steps_s = {each.id: [run.step_time_s for run in tried.runs_of(each.id)] for each in cells}
    assert after["predicted"]["against"] == placement.cell
    for measured, predicted in ((steps_s, "time_gain"), (node.steps_j, "energy_gain")):
        was, now = (statistics.median(measured[each.id]) for each in cells)
        _, low, high = after["predicted"][predicted]
        assert low - 0.005 < 1 - now / was < high + 0.005


def test_limits_that_the_platform_does_not_allow_are_not_written(place, edit, tmp_path, capsys):
    edit("platforms/h200x4.yaml", "gpu_settings: allowed", "gpu_settings: forbidden")
    assert place() == 0
    ways = ("power_limits_w: ", "gpu_settings: allowed", "platforms/h200x4.yaml")
    assert lacking(capsys.readouterr().out, "Limit GPUs: ", *ways) == []
    assert not (tmp_path / "placed.yaml").exists()
    assert json.loads((tmp_path / "placement.json").read_text())["power_limits_w"] is not None
