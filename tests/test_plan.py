"""What a platform's plan says of step times, and where these come from."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import yaml

from tests import shipped
from tests.conftest import ROOT
from tests.made_sweeps import made_sweep
from workflow_lib import cells, plan
from workflow_lib.formulas import flops_per_token
from workflow_lib.launch.rendering import render_run
from workflow_lib.plan_text import describe
from workflow_lib.projection.own_runs import read_own
from workflow_lib.projection.planned import layout, step_time
from workflow_lib.records import cell_axes
from workflow_lib.records.cell_axes import identity
from workflow_lib.records.tables import PLAN
from workflow_lib.report.figures.numbers import significant
from workflow_lib.report.page import planned_row as page_row
from workflow_lib.results import run_directory
from workflow_lib.study import Files, load_study
from workflow_lib.table_files import read_table

STUDY, SWEEPS = shipped.study(), shipped.sweeps()


def planned(sweep, **wanted):
    """The first cell of a sweep whose training has what is wanted."""
    return next(
        each
        for each in SWEEPS[sweep].cells
        if each.feasible
        and all(getattr(each.cell.training, name) == value for name, value in wanted.items())
    )


def test_a_cell_that_was_measured_is_projected_to_what_it_took():
    sweep = SWEEPS["evidence-llama3-8b-x2"]
    runs = read_own()
    for each in sweep.cells:
        time = step_time(each.cell)
        # Of each other layout it has an earlier state of the engine, which nothing is fitted to.
        own = layout(each.cell)
        alike = [run for run in runs if replace(run.layout, machine=own.machine) == own]
        took_s = [run.step_time_s for run in alike if run.gpu == own.machine.gpu]
        assert time.s == pytest.approx(sum(took_s) / len(took_s), rel=0.01)
        assert time.low_s < min(took_s) <= max(took_s) < time.high_s
        # Hosts of one kind differ by 0.9 %.
        assert time.low_s < time.s / 1.015
        assert time.high_s > time.s * 1.015


def test_what_no_run_says_anything_of_is_not_projected():
    assert step_time(planned("mi250-counterpart").cell) is None
    assert step_time(planned("inference-h200", workload="inference").cell) is None
    assert step_time(planned("lora-h200", workload="lora").cell) is None
    assert step_time(planned("smoke-h200", precision="fp32").cell) is None


@pytest.mark.parametrize(
    "degrees", [{"dp": 1, "cp": 2}, {"pp": 2, "dp": 1, "schedule": "zero-bubble"}]
)
def test_nor_is_what_no_fitted_run_has(degrees):
    measured = SWEEPS["evidence-llama3-8b-x2"].cells[0].cell
    assert step_time(measured) is not None
    assert step_time(replace(measured, degrees=replace(measured.degrees, **degrees))) is None


def test_stages_that_are_divided_by_work_are_projected_so():
    """Against runs that nothing was fitted to: 65,536 tokens at 9,440 tokens/s on each of two GPUs
    (docs/results/evidence-stages-x2.md)."""
    even, by_work = (step_time(each.cell) for each in SWEEPS["evidence-stages-x2"].cells)
    assert by_work.low_s < 65_536 / (2 * 9_440) < by_work.high_s
    # The last stage, whose head takes as long as two layers, has one layer less of 16.
    assert 0.93 < by_work.s / even.s < 0.96


def test_nor_are_emulated_nodes_of_which_the_plan_says_so():
    measured = SWEEPS["evidence-llama3-8b-x2"].cells[0].cell
    emulated = replace(measured.hardware, emulated="two daemons of one host")
    assert step_time(replace(measured, hardware=emulated)) is None
    text = describe(plan.table([SWEEPS["evidence-emulated-nodes-x4-h200x2-emulated-nodes"]]))
    assert re.search("emulated-nodes .*emulated: its two ", text)
    assert "emulated" not in describe(plan.table([SWEEPS["evidence-llama3-8b-x2"]]))


def test_a_plan_says_which_times_are_projected():
    text = describe(plan.table([SWEEPS["smoke-h200"]]))
    assert "assumed 40 % MFU" in text
    text = describe(plan.table([SWEEPS["evidence-llama3-8b-x2"]]))
    assert re.search("4 step times .* 90 %: projected", text)
    assert "MFU" not in text


def test_a_cell_has_one_estimate_wherever_it_is_named(tmp_path, capsys):
    name = "evidence-llama3-8b-x2"
    written = {}
    for what, value in (("--platform", "h200x2"), ("--sweep", name)):
        path = tmp_path / what / "plan.parquet"
        printed(capsys, what, value, "--output", str(path))
        rows = read_table(path, PLAN).iter_rows(named=True)
        written[what] = {row["cell"]: row for row in rows if name in row["sweeps"].split(",")}
    assert len(written["--sweep"]) == 4
    for planned in SWEEPS[name].cells:
        of_sweep, of_platform = (rows[planned.cell.id] for rows in written.values())
        time = step_time(planned.cell)
        for row in (of_sweep, of_platform):
            assert row["step_time_source"] == "projected"
            ends = [row[f"step_time_{end}s"] for end in ("", "low_", "high_")]
            assert ends == [time.s, time.low_s, time.high_s]
            assert row["time_limit_min"] == planned.estimate.time_limit_min
        # In the sweep's own plan, from which the report's table comes, and in the job's script.
        assert page_row(of_sweep, "cell")["step_time_s"] == significant(time.s)
        render_run(STUDY, planned, 1, tmp_path, ROOT)
        script = (run_directory(tmp_path, planned.cell.id, 1) / "job.sh").read_text()
        assert f"#SBATCH --time={of_platform['time_limit_min']}\n" in script


def test_gpu_hours_and_time_limits_follow_the_projected_time():
    planned = SWEEPS["evidence-llama3-8b-x2"].cells[0]
    cell, cost, time = planned.cell, planned.estimate, step_time(planned.cell)
    steps = cell.training.warmup_steps + cell.training.measured_steps
    waits_s = 120 + cell.telemetry.idle_baseline_s + cell.telemetry.cool_down_limit_s
    assert cost.run_time_s == pytest.approx(waits_s + steps * time.s)
    assert cost.gpu_hours(cell, 3) == pytest.approx(3 * 2 * cost.run_time_s / 3600)
    longest_min = 2 * (waits_s + steps * time.high_s) / 60
    assert cost.time_limit_min == max(15, math.ceil(longest_min))


@pytest.mark.parametrize(
    ("hours", "shown"),
    [(0.4, "0.4"), (0.5, "0.5"), (0.04, "0.04"), (12.34, "12.3"), (123.4, "123"), (0.0, "0")],
)
def test_half_a_gpu_hour_is_not_none(hours, shown):
    rows = plan.table([SWEEPS["evidence-llama3-8b-x2"]]).head(1)
    text = describe(rows.with_columns(pl.lit(hours).alias("gpu_hours")))
    assert f"Estimated GPU-hours: {shown}.\n" in text
    assert lines_of(text, "cell")[0]["GPU-hours"] == shown


def mine(directory: Path, **changes: object) -> Path:
    """A new site's platform, which no sweep names."""
    plain = yaml.safe_load((directory / "platforms" / "h200.yaml").read_text())
    path = directory / "platforms" / "mine.yaml"
    path.write_text(yaml.safe_dump(plain | changes))
    return path


def test_a_platform_that_no_sweep_names_has_smoke_and_slots(study_directory, capsys):
    mine(study_directory, nodes=3, gpus_per_node=6, airflow=["unknown"] * 6)
    config = ("--config", str(study_directory))
    text = printed(capsys, *config, "--platform", "mine")
    rows = lines_of(text, "cell")
    assert {(row["sweeps"], row["nodes"], row["GPUs"]) for row in rows} == {
        ("smoke-mine", "2", "12"),
        ("slots-mine", "1", "6"),
    }


def test_a_sweep_that_a_platform_cannot_run_is_no_mistake(study_directory, capsys):
    # A node's only GPU has none beside it.
    mine(study_directory, nodes=1, gpus_per_node=1, airflow=["unknown"])
    config = ("--config", str(study_directory))
    text = printed(capsys, *config, "--platform", "mine")
    assert "smoke-mine" not in text  # a plan of one sweep names it nowhere
    assert "slots-mine" not in text
    assert {row["GPUs"] for row in lines_of(text, "cell")} == {"1"}
    assert plan.main([*config, "--sweep", "slots-mine"]) == 1
    assert "cell on mine" in capsys.readouterr().err


def test_a_sweep_for_all_that_does_not_fit_is_named_with_the_reason(study_directory, capsys):
    mine(study_directory, gpu_memory_gb=12)
    assert plan.main(["--config", str(study_directory), "--platform", "mine"]) == 0
    (told,) = (line for line in capsys.readouterr().err.splitlines() if "slots-mine" in line)
    assert told.count(" 12 GB") == 1


def test_smoke_is_for_every_platform_and_slots_for_those_with_gpus_side_by_side():
    for name, platform in STUDY.platforms.items():
        assert SWEEPS[f"smoke-{name}"].can_run
        assert SWEEPS[f"slots-{name}"].can_run == (
            platform.gpus_per_node > 1 and platform.gpu_memory_gb is not None
        )


def test_a_mistake_of_a_platform_without_sweeps_is_told(study_directory, capsys):
    path = mine(study_directory, time_limit_max_min="48:00:00")
    assert plan.main(["--config", str(study_directory), "--platform", "mine"]) == 1
    assert f"{path}: time_limit_max_min: " in capsys.readouterr().err


def test_a_platform_without_a_sweep_is_told_where_to_name_it(three_sweeps, capsys):
    mine(three_sweeps)
    assert plan.main(["--config", str(three_sweeps), "--platform", "mine"]) == 1
    assert str(three_sweeps / "sweeps") in capsys.readouterr().err


def test_a_sweep_for_all_platforms_keeps_its_name_where_there_is_only_one(study_directory):
    for path in (study_directory / "platforms").glob("*.yaml"):
        if path.stem != "h200":
            path.unlink()
    study = load_study(study_directory)
    only = replace(study, sweeps=Files({"slots": study.sweeps["slots"]}))
    assert list(cells.expand_study(only)) == ["slots-h200"]
    named = {path.name for path in study.files_of("slots", "h200")}
    assert named == {"slots.yaml", "h200.yaml", "llama3-8b.yaml", "synthetic.yaml"}


# ------------------------------------------------------------------------------- the plan as text


def written(directory: Path, name: str, **changes: object) -> None:
    """A sweep of one tiny model on h200, or what differs from it."""
    sweep = made_sweep(
        "made up",
        {"warmup_steps": 2, "measured_steps": 10, "idle_baseline_s": 2},
        {"micro_batch_size": 1, "global_batch_size": 16, "precision": "bf16"}
        | {"learning_rate": 1.0e-4},
        platforms=["h200"],
        repeats=3,
        matrix=[{"models": "llama3-8b", "gpus": 8, "tp": 8}],
    )
    (directory / "sweeps" / f"{name}.yaml").write_text(yaml.safe_dump(sweep | changes))


@pytest.fixture
def three_sweeps(study_directory: Path) -> Path:
    """Sweeps of which two share a cell, and one has cells that differ in no part of their names."""
    for path in (study_directory / "sweeps").glob("*.yaml"):
        path.unlink()
    matrix = [{"models": "llama3-8b", "gpus": 8, "tp": 8, "learning_rate": [1.0e-4, 3.0e-4]}]
    written(study_directory, "first")
    written(study_directory, "second", matrix=matrix)
    written(study_directory, "third", matrix=[{"models": "llama3-8b", "gpus": 8}])
    (study_directory / "config.yaml").write_text(
        "config_directory: config\nresults_directory: results\nsweeps: [second, third]\n"
    )
    return study_directory


def printed(capsys, *arguments: str) -> str:
    """What ``python -m workflow_lib.plan`` prints."""
    assert plan.main([*arguments]) == 0
    return capsys.readouterr().out


def lines_of(text: str, heading: str) -> list[dict[str, str]]:
    """The rows of the table whose first heading is this, by heading."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(heading))
    rule = lines[start + 1]
    edges = [(m.start(), m.end()) for m in re.finditer("-+", rule)]
    edges[-1] = (edges[-1][0], 10_000)
    names = [lines[start][a:b].strip() for a, b in edges]
    found = []
    for line in lines[start + 2 :]:
        if not line or line.startswith(("1 cell is", "2 cells are")):
            break
        found.append(dict(zip(names, (line[a:b].strip() for a, b in edges), strict=True)))
    return found


def test_no_two_rows_of_a_plan_read_alike(three_sweeps, capsys):
    text = printed(capsys, "--config", str(three_sweeps), "--platform", "h200")
    rows = lines_of(text, "cell")
    assert [(row["cell"], row["sweeps"]) for row in rows] == [
        ("llama3-8b tp8 sp lr 0.0001", "first, second"),
        ("llama3-8b tp8 sp lr 0.0003", "second"),
        ("llama3-8b dp8", "third"),
    ]
    # What no name tells is said once, so that plan, page and results name a cell in one way.
    assert "mb1 gb16 bf16 zero1" in text


def test_a_plan_says_what_the_default_command_costs(three_sweeps, capsys):
    text = printed(capsys, "--config", str(three_sweeps), "--platform", "h200")
    assert [(row["sweep"], row["cells"], row["runs"]) for row in lines_of(text, "sweep ")] == [
        ("first", "1", "3"),
        ("second", "2", "6"),
        ("third", "1", "3"),
    ]
    assert "1 cell is asked" in text
    assert "3 cells: 3 can" in text
    # By hand: of 9 runs, all but none are of second and third, which share the cell of first.
    assert re.search("slurm_h200` .*second, third, .*: 9 ", text)


def test_a_plan_of_one_sweep_speaks_of_no_default(three_sweeps, capsys):
    text = printed(capsys, "--config", str(three_sweeps), "--sweep", "second")
    assert [row["cell"] for row in lines_of(text, "cell")] == [
        "llama3-8b tp8 lr 0.0001",
        "llama3-8b tp8 lr 0.0003",
    ]
    assert "sweeps" not in text
    assert "snakemake" not in text


@pytest.mark.parametrize("platform", ["h200", "h100", "mi250", "local"])
def test_no_two_rows_of_the_shipped_plans_read_alike(platform):
    sweeps = [each for each in SWEEPS.values() if each.platform == platform]
    rows = lines_of(describe(plan.table(sweeps)), "cell")
    assert len({row["cell"] for row in rows}) == len(rows)


def test_a_run_that_only_another_sweep_profiles_is_no_run_of_this_one(capsys):
    text = printed(capsys, "--config", "config", "--platform", "local")
    runs = {row["sweep"]: row["runs"] for row in lines_of(text, "sweep ")}
    # Of the demo's 6 cells 5 can run; three of these traces-local has profiled, too.
    assert (runs["demo"], runs["traces-local"]) == ("5", "6")
    assert re.search("profile local` .* demo, .*: 5 ", text)


def test_an_unknown_gpu_is_answered_with_those_known(three_sweeps, edit, capsys):
    edit("platforms/h200.yaml", "gpu: H200", "gpu: B300")
    text = printed(capsys, "--config", str(three_sweeps), "--platform", "h200")
    assert re.search("unknown .*B300 .*peak_bf16_", text)
    assert "H200, H200 NVL, H100, " in text


@pytest.mark.parametrize("platform", ["h100x1", "h200x1"])
def test_the_sweep_of_fp8_has_each_cell_in_bf16_too_and_windows_of_half_a_minute(platform):
    cells = [each.cell for each in SWEEPS[f"evidence-fp8-{platform}"].cells if each.feasible]
    pairs = cell_axes.alike([identity(cell) for cell in cells], ("precision",))

    assert [len(pair) for pair in pairs] == [2]
    for cell in cells:
        assert cell.training.precision in ("bf16", "fp8")
        assert cell.training.compile
        # At an MFU of 45 %, in fp8 more than was seen on H200.
        peak = cell.hardware.peak_flops_per_s(cell.training.precision)
        tokens = cell.training.global_batch_size * cell.model.sequence_length
        flops = flops_per_token(cell.model, cell.training).causal * tokens
        assert cell.training.measured_steps * flops / (0.45 * peak) >= 30


@pytest.mark.parametrize(
    ("excluded", "code", "said"),
    [("tp: 7", 0, r"demo\.yaml: exclude\.0: "), ("platform: local", 1, "on local: .*exclude")],
    ids=["no cell", "every cell"],
)
def test_an_exclusion_of_all_or_none(study_directory, edit, capsys, excluded, code, said):
    edit("sweeps/demo.yaml", "repeats: 1", f"repeats: 1\nexclude: [{{{excluded}}}]")
    assert plan.main(["--config", str(study_directory), "--sweep", "demo"]) == code
    assert re.search(said, capsys.readouterr().err)


def test_cells_that_are_larger_than_the_machine_are_counted(study_directory):
    study = load_study(study_directory)
    sweep = cells.expand_study(study)["demo"]
    needs = [
        planned.estimate.memory.total * planned.cell.degrees.world_size
        for planned in sweep.cells
        if planned.estimate is not None
    ]
    assert plan.warnings([sweep], study, max(needs)) == []
    (said,) = plan.warnings([sweep], study, min(needs) - 1)
    assert f"{len(needs)} cells" in said
    assert f"{max(needs) / 1e9:.0f} GB on a CPU" in said


def test_step_times_that_are_not_known_are_not_explained(capsys):
    assert plan.main(["--sweep", "demo"]) == 0
    assert "expected_mfu" not in capsys.readouterr().out


def test_a_plan_that_cannot_be_written_may_go_elsewhere(tmp_path, monkeypatch, capsys):
    clone, access = tmp_path / "clone", os.access
    clone.mkdir()

    def read_only(path, mode):
        return access(path, mode) and not (mode & os.W_OK and Path(path) == clone)

    monkeypatch.setattr(os, "access", read_only)
    asked = ["--config", str(ROOT / "config"), "--sweep", "evidence-llama3-8b-x2"]
    path = clone / "results" / "plans" / "plan.parquet"
    assert plan.main([*asked, "--output", str(path)]) == 1
    said = capsys.readouterr().err
    assert f"{path} cannot be written" in said
    assert f"{clone} is read-only" in said
    assert "make plan RESULTS=" in said
    assert plan.main([*asked, "--output", str(tmp_path / "other" / "plan.parquet")]) == 0
    assert (tmp_path / "other" / "plan.parquet").is_file()


def test_a_terminal_that_lacks_a_character_gets_its_escape():
    printed = subprocess.run(
        [sys.executable, "-m", "workflow_lib.plan", "--platform", "local"],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=True,
    ).stdout.decode("latin-1")

    assert r" \u2013 " in printed


@pytest.mark.parametrize("sweep", ["demo", "parallelism-h200"])
def test_whoever_stops_reading_a_plan_sees_no_traceback(sweep):
    # The shorter plan stays in Python's buffer until the process ends.
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as output:
        ended = subprocess.run(
            [sys.executable, "-m", "workflow_lib.plan", "--sweep", sweep],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.PIPE,
        )

    # As a shell says of a process that SIGPIPE ended.
    assert (ended.returncode, ended.stderr) == (141, b"")
