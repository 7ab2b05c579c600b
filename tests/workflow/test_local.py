"""The whole workflow on one machine: what it leaves, and what makes it run again."""

import json
import os
import signal
import socket
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import polars as pl
import pytest

from tests.programs import well
from tests.waiting import until
from tests.workflow import conftest
from tests.workflow.conftest import LONGEST_S, SNAKEMAKE, SWEEP
from workflow_lib.records.contract import RankRecord
from workflow_lib.records.files import read_record
from workflow_lib.records.nodes import TelemetryStart
from workflow_lib.records.outcomes import JobRecord, Outcome, OutcomeRecord
from workflow_lib.records.paths import RunPaths, boot_id

pytestmark = pytest.mark.slow

#: one cell
BLOCK = {"models": "gpt3-tiny", "gpus": 1, "dp": 1}


@contextmanager
def edited(checkout, name, old, new):
    """An edit that is taken back."""
    checkout.edit(name, old, new)
    try:
        yield
    finally:
        checkout.edit(name, new, old)


def test_a_sweep_ends_in_tables_figures_and_a_report(finished):
    view = finished.directory / "results" / "sweeps" / "tiny"
    assert (view / "report.html").stat().st_size > 10_000
    assert list((view / "figures").glob("*.svg"))
    assert list((view / "figures").glob("*.pdf"))
    runs = pl.read_parquet(view / "runs.parquet")
    assert sorted(runs["model"]) == ["gpt3-tiny", "llama3-tiny"]
    assert runs["outcome"].to_list() == ["completed", "completed"]
    assert runs["tokens_per_s"].min() > 0
    assert runs["mfu_6n"].null_count() == 2


def test_the_plan_is_there_before_the_first_run_begins(finished):
    plan = finished.directory / "results" / "sweeps" / "tiny" / "plan.parquet"
    began = [run.submission.stat().st_mtime for run in finished.runs().values()]
    assert plan.stat().st_mtime < min(began)


def test_sampler_and_ranks_say_in_which_job_they_ran(finished):
    run = finished.runs()["gpt3-tiny"]
    job = read_record(run.job, JobRecord).job_id
    (node,) = run.sampled_nodes()
    for record in (
        read_record(run.telemetry_start(node), TelemetryStart),
        read_record(run.rank(0), RankRecord),
    ):
        assert (record.job_id, record.boot_id) == (job, boot_id())


def test_a_rank_says_where_its_start_up_went(finished):
    rank = read_record(finished.runs()["gpt3-tiny"].rank(0), RankRecord)
    moments = (rank.started_unix_s, rank.imported_unix_s, rank.connected_unix_s, rank.built_unix_s)
    assert list(moments) == sorted(set(moments))


def test_a_profiled_run_ends_in_tables_of_its_traces_and_is_not_measured(finished):
    view = finished.directory / "results" / "sweeps" / "tiny"
    assert set(pl.read_parquet(view / "runs.parquet")["run"]) == {1}
    assert set(pl.read_parquet(view / "cells.parquet")["completed"]) == {1}
    for measured in finished.runs().values():
        run = RunPaths(measured.directory.with_name("run0"))
        assert json.loads(run.outcome.read_text())["cause"].endswith("left its trace")
        assert run.cell.read_bytes() == measured.cell.read_bytes()
        assert run.rank_steps(0).read_text().count("\n") == 1 + 1 + 2
        assert list(run.telemetry.glob("*-end.json"))
        assert not run.summary.exists()
        assert pl.read_parquet(run.trace_times)["steps"].to_list() == [2]
        assert "gemm" in set(pl.read_parquet(run.kernels)["class"])


def test_runs_began_in_the_order_of_their_places_and_the_tables_have_them(finished):
    runs = [
        RunPaths(measured.directory.with_name(name))
        for measured in finished.runs().values()
        for name in ("run0", "run1")
    ]
    runs.sort(key=lambda run: json.loads(run.outcome.read_text())["started_unix_s"])
    orders = [json.loads(run.order.read_text()) for run in runs]
    assert [order["place"] for order in orders] == sorted(order["place"] for order in orders)
    assert [order["block"] for order in orders] == [1, 1, 0, 0]
    table = pl.read_parquet(finished.directory / "results/sweeps/tiny/runs.parquet")
    table = table.sort("started_unix_s")
    assert table["order_place"].to_list() == [order["place"] for order in orders[:2]]
    assert table["order_block"].to_list() == [1, 1]


@pytest.mark.long
def test_an_archive_of_it_is_rebuilt_elsewhere_to_the_same_bytes(finished, tmp_path):
    archive = tmp_path / "tiny.zip"
    for command in (
        ["pack", "--sweep", "tiny", "--output", str(archive)],
        ["rebuild", str(archive), "--into", str(tmp_path / "rebuilt")],
    ):
        done = well(finished.call(sys.executable, "-m", "workflow_lib.archive", *command))
    assert "same as before" in done.stdout


def test_a_path_full_of_shell_characters_is_only_a_path(finished):
    assert "$(" in str(finished.directory)
    assert {path.name for path in finished.directory.parent.iterdir()} == {finished.directory.name}


def test_nothing_is_done_twice(finished):
    assert finished.planned_jobs() == set()


#: a file, what stands there, and what may stand there as well without a run that trains again
HARMLESS = (
    ("workflow_lib/trainers/native/loop.py", '"""', '# a comment\n"""'),
    ("rules/run.smk", "2>&1 | tee {log:q}", "2>&1 |  tee {log:q}"),
    ("envs/workflow.yaml", "python=3.12", "python=3.13"),
    ("workflow_lib/launch/templates/job.sh.j2", "# One rank a GPU", "# A rank a GPU"),
    ("profiles/local/config.yaml", "# Other cells", "# The other cells"),
)


def test_a_comment_in_training_and_how_runs_are_launched_train_nothing(finished):
    with ExitStack() as edits:
        for edit in HARMLESS:
            edits.enter_context(edited(finished, *edit))
        assert finished.planned_jobs() == set()


OF_ANALYSIS = {"reduce", "traces", "collect", "figures", "page"}, {"run", "render", "tokenize"}


@pytest.mark.parametrize(
    ("name", "line", "again", "spared"),
    [
        ("workflow_lib/analysis/metrics.py", '"""', *OF_ANALYSIS),
        pytest.param(
            "workflow_lib/analysis/reduce.py", '"""', *OF_ANALYSIS, marks=pytest.mark.kills
        ),
        ("workflow_lib/report/page.py", '"""', {"figures", "page"}, {"run", "render", "reduce"}),
        ("config/models/gpt3-tiny.yaml", "description:", set(), {"run", "render"}),
    ],
)
def test_a_comment_has_made_again_what_its_file_makes_and_trains_nothing(
    finished, name, line, again, spared
):
    with edited(finished, name, line, f"# a comment\n{line}"):
        rules = {rule for rule, _ in finished.planned_jobs()}
    assert again <= rules
    assert not rules & spared


@pytest.mark.skipif(os.getuid() != 0, reason="gives directories to another user")
def test_editing_the_analysis_reduces_no_run_in_which_another_user_alone_may_write(
    finished, tmp_path, monkeypatch
):
    limited = tmp_path / "snakemake"
    limited.write_text(f'#!/bin/sh\nexec setpriv --bounding-set -dac_override {SNAKEMAKE} "$@"\n')
    limited.chmod(0o755)
    monkeypatch.setattr(conftest, "SNAKEMAKE", limited)
    theirs = list((finished.directory / "results" / "cells").glob("*/*/*/run*"))
    assert theirs
    for directory in theirs:
        os.chown(directory, 1, 1)
    try:
        with edited(finished, "workflow_lib/analysis/collect.py", '"""', '# a comment\n"""'):
            rules = {rule for rule, _ in finished.planned_jobs()}
    finally:
        for directory in theirs:
            os.chown(directory, 0, 0)
    assert "collect" in rules
    assert not rules & {"reduce", "traces", "run", "render"}


@pytest.mark.kills
def test_a_host_that_only_measures_runs_every_cell_and_analyses_nothing(checkout):
    jobs = checkout.planned_jobs("--config", "sweeps=[tiny]", target="measured")
    assert jobs == {
        ("measured", ""),
        *((rule, model) for rule in ("render", "run") for model in ("gpt3-tiny", "llama3-tiny")),
    }


def test_editing_a_cell_trains_exactly_that_cell(finished):
    with edited(
        finished, "config/models/gpt3-tiny.yaml", "ffn_hidden_size: 512", "ffn_hidden_size: 256"
    ):
        jobs = finished.planned_jobs()
    assert {job for job in jobs if job[0] in ("render", "run", "reduce")} == {
        ("render", "gpt3-tiny"),
        ("run", "gpt3-tiny"),
        ("reduce", "gpt3-tiny"),
    }


@pytest.mark.parametrize(
    "number", [1, pytest.param(0, marks=pytest.mark.kills)], ids=["measured", "profiled"]
)
def test_who_asks_for_the_page_alone_gets_the_run_that_was_lost(finished, number):
    # Lost as a whole, and asked for by name: all tables and the page are younger than what is left.
    lost = finished.runs()["gpt3-tiny"].directory.with_name(f"run{number}")
    aside = lost.with_name("aside")
    lost.rename(aside)
    try:
        jobs = finished.planned_jobs()
    finally:
        aside.rename(lost)

    assert {job for job in jobs if job[0] in ("render", "run")} == {
        ("render", "gpt3-tiny"),
        ("run", "gpt3-tiny"),
    }
    assert ("page", "") in jobs
    assert finished.planned_jobs() == set()


def started(checkout, path, seconds=LONGEST_S):
    """Wait for a file that a run leaves."""
    deadline = time.monotonic() + seconds
    while not (found := list(checkout.directory.glob(path))):
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.05)
    return found[0]


def test_a_job_goes_on_when_snakemake_is_killed_and_its_result_is_taken(checkout):
    checkout.write_sweep(matrix=[BLOCK], protocol=SWEEP["protocol"] | {"measured_steps": 60})
    snakemake = checkout.start()
    started(checkout, "results/cells/*/*/*/run1/steps/rank0.csv")
    snakemake.kill()
    snakemake.wait()
    (run,) = checkout.runs().values()
    job = run.job.read_text()
    assert not run.ended.exists()

    # The same command goes on; a dry run lifts nothing.
    killed = f"Snakemake {snakemake.pid} on {socket.gethostname()} "
    tried = checkout.snakemake("results/sweeps/tiny/report.html", "--dry-run")
    assert killed in tried.stdout
    assert "without --dry-run" in tried.stdout
    done = well(checkout.snakemake("results/sweeps/tiny/report.html"))
    assert "at results/sweeps/tiny/" in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "ended without unlocking" in line]
    assert line.startswith(killed)
    assert line.endswith("; its lock is lifted")
    assert json.loads(run.outcome.read_text())["outcome"] == "completed"
    # The same job, submitted once.
    assert run.job.read_text() == job
    assert not run.attempts.exists()


@pytest.mark.parametrize("presses", [1, pytest.param(3, marks=pytest.mark.kills)])
def test_an_interrupted_snakemake_ends_the_job_and_says_so(checkout, presses):
    checkout.write_sweep(matrix=[BLOCK], protocol=SWEEP["protocol"] | {"measured_steps": 100})
    snakemake = checkout.start()
    rank = started(checkout, "results/cells/*/*/*/run1/steps/rank0.json")
    process = json.loads(rank.read_text())["pid"]
    log = checkout.directory / "snakemake.log"
    for _ in range(presses):
        snakemake.send_signal(signal.SIGINT)
        while "Terminating processes on user request" not in log.read_text(encoding="utf-8"):
            assert snakemake.poll() is None
            time.sleep(0.05)
    assert snakemake.wait(timeout=LONGEST_S) != 0
    assert "event loop" not in log.read_text(encoding="utf-8")
    (run,) = checkout.runs().values()
    if presses == 1:  # the second one ends the wait for the job's end
        assert not Path(f"/proc/{process}").exists()
        assert json.loads(run.failure.read_text())["outcome"] == "cancelled"
    (log,) = checkout.directory.glob("results/logs/run/*/*/*/run1.log")
    assert "cancelled job" in log.read_text()


@pytest.mark.kills
def test_a_snakemake_of_its_own_for_each_run_is_refused(checkout):
    checkout.write_sweep(matrix=[BLOCK])
    done = checkout.call(
        *(str(SNAKEMAKE), "--cores", "1", "--until", "run", "results/sweeps/tiny/report.html"),
        *("--config", "platform=local", "sweeps=[tiny]"),
    )
    assert done.returncode != 0
    assert "--force-use-threads" in done.stdout + done.stderr
    (run,) = checkout.runs().values()
    assert not run.submission.exists()


@pytest.mark.long
def test_ranks_end_with_their_job_and_the_run_is_made_again(checkout):
    # So many that training goes on when the script is killed, on a quick machine as well.
    checkout.write_sweep(matrix=[BLOCK], protocol=SWEEP["protocol"] | {"measured_steps": 100})
    snakemake = checkout.start()
    steps = started(checkout, "results/cells/*/*/*/run1/steps/rank0.csv")
    process = json.loads(steps.with_suffix(".json").read_text())["pid"]
    (run,) = checkout.runs().values()
    script = next(
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.read_bytes().split(b"\0")[:2] == [b"bash", bytes(run.script)]
    )
    os.kill(script, signal.SIGKILL)
    assert snakemake.wait() != 0
    assert not Path(f"/proc/{process}").exists()
    assert json.loads(run.failure.read_text())["outcome"] == "error"

    well(checkout.snakemake())
    assert (run.attempts / "1" / "steps" / "rank0.csv").exists()


def test_a_failed_cell_is_reported_and_alone_is_run_again(checkout):
    hopeless = {"models": "llama3-tiny", "gpus": 1, "dp": 1, "learning_rate": 1.0e30}
    checkout.write_sweep(matrix=[BLOCK, hopeless])
    done = checkout.snakemake()
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert "nonfinite_loss" in output

    runs = checkout.runs()
    failure = json.loads(runs["llama3-tiny"].failure.read_text())
    assert failure["outcome"] == "nonfinite_loss"
    assert not runs["llama3-tiny"].outcome.exists()
    # What was measured before is there, and the report shows the other cell and the reason.
    assert runs["llama3-tiny"].rank_steps(0).exists()
    view = checkout.directory / "results" / "sweeps" / "tiny"
    cells = pl.read_parquet(view / "cells.parquet")
    assert dict(zip(cells["model"], cells["outcome"], strict=True)) == {
        "gpt3-tiny": "completed",
        "llama3-tiny": "nonfinite_loss",
    }
    assert "nonfinite" in (view / "report.html").read_text()

    jobs = checkout.planned_jobs()
    assert {job for job in jobs if job[0] == "run"} == {("run", "llama3-tiny")}


@pytest.mark.long
def test_training_that_lost_its_sampler_is_stopped(checkout):
    checkout.write_sweep(matrix=[BLOCK], protocol=SWEEP["protocol"] | {"measured_steps": 2000})
    snakemake = checkout.start()
    started(checkout, "results/cells/*/*/*/run1/steps/rank0.csv")
    (run,) = checkout.runs().values()
    (lock,) = run.telemetry.glob("*.lock")
    os.kill(int(lock.read_text().split()[1]), signal.SIGKILL)
    assert snakemake.wait() != 0
    assert json.loads(run.stopped.read_text())["outcome"] == "telemetry_invalid"
    failure = json.loads(run.failure.read_text())
    assert failure["outcome"] == "telemetry_invalid"
    assert "stopped early: telemetry" in failure["cause"]
    assert "SIGKILL" in failure["cause"]


@pytest.mark.kills
def test_figures_of_a_run_that_was_not_watched_to_its_end_are_kept(checkout):
    checkout.write_sweep(matrix=[BLOCK], protocol=SWEEP["protocol"] | {"measured_steps": 12})
    snakemake = checkout.start()
    started(checkout, "results/cells/*/*/*/run1/steps/rank0.csv")
    (run,) = checkout.runs().values()
    (lock,) = run.telemetry.glob("*.lock")
    sampler = int(lock.read_text().split()[1])
    # It would be missed after a minute.
    os.kill(sampler, signal.SIGSTOP)
    lines = 1 + SWEEP["protocol"]["warmup_steps"] + 12
    until(lambda: run.rank_steps(0).read_bytes().count(b"\n") >= lines)
    os.kill(sampler, signal.SIGKILL)
    assert snakemake.wait() != 0

    ended = json.loads(run.ended.read_text())
    assert (ended["failed_stage"], ended["training_exit_code"]) == (None, 0)
    assert json.loads(run.failure.read_text())["outcome"] == "telemetry_invalid"
    view = checkout.directory / "results" / "sweeps" / "tiny"
    (row,) = pl.read_parquet(view / "runs.parquet").to_dicts()
    assert row["outcome"] == "telemetry_invalid"
    assert "SIGKILL" in row["cause"]
    assert row["counted_steps"] == 12
    assert row["tokens_per_s"] > 0
    assert row["energy_j"] is None
    assert "with invalid telemetry" in (view / "report.html").read_text()


@pytest.mark.kills
def test_a_job_cools_down_between_telemetry_and_its_idle_baseline(checkout):
    checkout.edit(
        "config/platforms/local.yaml",
        "power_limit_w: null",
        "power_limit_w: null\nidle_temperature_c: 60",
    )
    cooling = {"cool_down": {"within_c": 5.0, "limit_s": 60.0}, "idle_baseline_s": 2}
    checkout.write_sweep(matrix=[BLOCK], protocol=SWEEP["protocol"] | cooling)
    well(checkout.snakemake())
    (run,) = checkout.runs().values()
    cooled = json.loads(run.cool_down.read_text())
    # Simulated GPUs of an idle machine are cooler than that from the first sample on.
    assert cooled["reached"]
    assert 0 < cooled["hottest_after_c"] <= 65
    view = checkout.directory / "results" / "sweeps" / "tiny"
    (row,) = pl.read_parquet(view / "runs.parquet").to_dicts()
    assert row["cool_down_s"] == cooled["waited_s"]
    assert row["idle_power_w"] > 0


@pytest.mark.kills
def test_results_that_were_moved_before_they_ran_run_where_they_lie(checkout):
    checkout.write_sweep(matrix=[BLOCK])
    well(checkout.snakemake("measured", "--until", "render", "--config", "sweeps=[tiny]"))
    (checkout.directory / "results").rename(checkout.directory / "moved")
    moved = ("--config", "sweeps=[tiny]", "results_directory=moved")
    well(checkout.snakemake("measured", *moved))
    (directory,) = (checkout.directory / "moved").glob("cells/*/*/*/run1")
    assert read_record(RunPaths(directory).outcome, OutcomeRecord).outcome is Outcome.COMPLETED
    assert not (checkout.directory / "results").exists()
    # Rendered anew by the run itself, the script is no reason to run again.
    again = checkout.snakemake("measured", *moved)
    assert "Nothing to be" in again.stdout + again.stderr
