"""Results that were moved or copied: a run's job writes where the run lies, or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import workflow_lib
from tests.launch import runs, scripts
from workflow_lib import results
from workflow_lib.launch import (
    job_script,
    outcome,
    run_place,
    run_to_end,
    snapshot,
    submit,
)
from workflow_lib.launch.schedulers.refusals import SubmissionError
from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import JobRecord, JobState, Outcome, SubmissionRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json


@pytest.fixture(autouse=True)
def _impatient(impatient, monkeypatch):
    monkeypatch.setattr(submit, "TRUST_ABSENCE_AFTER_S", 0.1)


@pytest.fixture
def original(tmp_path: Path) -> RunPaths:
    return runs.rendered(tmp_path / "original")


def inside(paths: RunPaths, tmp_path: Path, name: str) -> RunPaths:
    """The same run below another directory."""
    return RunPaths(tmp_path / name / paths.directory.relative_to(tmp_path / "original"))


@pytest.fixture
def renamed(original, tmp_path) -> RunPaths:
    (tmp_path / "original").rename(tmp_path / "renamed")
    return inside(original, tmp_path, "renamed")


@pytest.fixture
def copied(original, tmp_path) -> RunPaths:
    """A copy with hard links, as backups make it."""
    shutil.copytree(tmp_path / "original", tmp_path / "copied", copy_function=os.link)
    return inside(original, tmp_path, "copied")


def rendered_anew(paths: RunPaths, code: snapshot.Snapshot | None = None) -> None:
    """As rule render would, for where the run lies now; with other code than today's if given."""
    cell = read_record(paths.cell, Cell)
    site = scripts.study().platforms[cell.hardware.platform]
    directory = results.code_directory(results.of_run(paths.directory, cell.id))
    places = job_script.Places(
        Path("/repository"), paths.directory, None, snapshot.write(directory, code)
    )
    job_script.write(cell, job_script.job_script(cell, site, places, 15), paths.directory)


@pytest.mark.parametrize("name", ["renamed", "copied"])
def test_a_script_that_was_never_submitted_is_rendered_anew_before_it_is(name, scheduler, request):
    paths = request.getfixturevalue(name)
    with pytest.raises(SubmissionError, match="snakemake"):
        run_to_end.run_to_end(paths.directory, "slurm")
    assert scheduler.submitted == []
    scheduler.courses = [lambda job_id: runs.complete(paths, job_id)]
    ended = run_to_end.run_to_end(paths.directory, "slurm", lambda: rendered_anew(paths))
    assert ended.outcome is Outcome.COMPLETED
    assert run_place.rendered_for(paths.script) == paths.directory


def test_a_failed_run_that_was_copied_is_rendered_anew_too(original, tmp_path, scheduler):
    runs.failure(original, "timeout")
    write_json(original.job, JobRecord("slurm", "6", 1.0, "somebody"))
    shutil.copytree(tmp_path / "original", tmp_path / "copied")
    paths = inside(original, tmp_path, "copied")
    scheduler.courses = [lambda job_id: runs.complete(paths, job_id)]
    run_to_end.run_to_end(paths.directory, "slurm", lambda: rendered_anew(paths))
    assert scheduler.submitted == ["1"]
    assert original.failure.exists()


@pytest.mark.parametrize("is_announced_only", [False, True])
def test_a_copy_has_no_job_of_the_original(original, tmp_path, scheduler, is_announced_only):
    if is_announced_only:
        announced = SubmissionRecord("triptych-0a1b2c3d-1-00ff00ff", 1.0, "somebody")
        write_json(original.submission, announced)
    else:
        write_json(original.job, JobRecord("slurm", "41", 1.0, "somebody"))
    shutil.copytree(tmp_path / "original", tmp_path / "copied")
    paths = inside(original, tmp_path, "copied")
    named = "triptych-0a1b2c3d-1" if is_announced_only else "job 41 "
    with pytest.raises(SubmissionError, match=f"original.* {named}"):
        run_to_end.run_to_end(paths.directory, "slurm", lambda: rendered_anew(paths))
    assert scheduler.submitted == []
    assert run_place.rendered_for(paths.script) == original.directory


def test_a_run_that_moved_under_its_job_is_waited_for(original, tmp_path, scheduler, capsys):
    """Its job says that it was moved, and stops; the next attempt is rendered for the new place."""
    write_json(original.job, JobRecord("slurm", "41", 1.0, "somebody"))
    (tmp_path / "original").rename(tmp_path / "renamed")
    paths = inside(original, tmp_path, "renamed")
    scheduler.courses = [lambda job_id: runs.complete(paths, job_id)]
    scheduler.states = ["FAILED"]
    ended = run_to_end.run_to_end(paths.directory, "slurm", lambda: rendered_anew(paths))
    assert ended.outcome is Outcome.COMPLETED
    assert str(original.directory) in capsys.readouterr().err
    assert run_place.rendered_for(paths.script) == paths.directory


def test_a_link_to_the_results_is_the_same_place(original, tmp_path, scheduler):
    (tmp_path / "linked").symlink_to(tmp_path / "original")
    paths = inside(original, tmp_path, "linked")
    scheduler.courses = [lambda job_id: runs.complete(original, job_id)]
    run_to_end.run_to_end(paths.directory, "slurm", lambda: pytest.fail("it has not moved"))


@pytest.mark.parametrize("name", ["it's $(here)", "a\rb", "a\nb", "a b", "ü\t="])
def test_the_place_is_read_as_it_was_written(name, tmp_path):
    script = tmp_path / "job.sh"
    script.write_bytes(f"\nrun_directory={job_script.quote(tmp_path / name)}\npython=x\n".encode())
    assert run_place.rendered_for(script) == tmp_path / name


# ------------------------------------------------------------------ code that changed


@pytest.fixture
def older(original, tmp_path) -> RunPaths:
    """A run whose script an older version of the code rendered."""
    package = tmp_path / "older" / "workflow_lib"
    shutil.copytree(Path(workflow_lib.__file__).parent, package)
    (package / "words.py").write_text("")
    rendered_anew(original, snapshot.take(package))
    return original


def without_code(original: RunPaths) -> RunPaths:
    code = run_place.code_of(original.script)
    assert code is not None
    code.unlink()
    return original


def of_a_version_that_kept_no_code(original: RunPaths) -> RunPaths:
    lines = original.script.read_text().split("\n")[2:]
    body = "\n".join(line for line in lines if not line.startswith("code="))
    original.script.write_text(job_script.with_checksum(body))
    return original


@pytest.mark.parametrize("stale", ["older", "gone", "oldest"])
def test_a_run_is_submitted_with_the_code_of_then(stale, original, scheduler, request, tmp_path):
    made = {"gone": without_code, "oldest": of_a_version_that_kept_no_code}
    paths = made[stale](original) if stale in made else request.getfixturevalue(stale)
    with pytest.raises(SubmissionError, match="snakemake"):
        run_to_end.run_to_end(paths.directory, "slurm")
    assert scheduler.submitted == []
    scheduler.courses = [lambda job_id: runs.complete(paths, job_id)]
    run_to_end.run_to_end(paths.directory, "slurm", lambda: rendered_anew(paths))
    code = run_place.code_of(paths.script)
    assert code is not None
    assert code.read_bytes() == snapshot.taken().content


def test_a_run_in_flight_keeps_its_code(older, scheduler):
    """Its job is waited for, and its script is that of the code that it runs."""
    write_json(older.job, JobRecord("slurm", "41", 1.0, "somebody"))
    runs.complete(older, "41")
    scheduler.states = ["COMPLETED"]
    rendered = older.script.read_bytes()
    ended = run_to_end.run_to_end(older.directory, "slurm", lambda: rendered_anew(older))
    assert ended.outcome is Outcome.COMPLETED
    assert (older.script.read_bytes(), scheduler.submitted) == (rendered, [])


def test_a_job_whose_code_is_gone_touches_nothing(original, tmp_path):
    without_code(original)
    before = everything(tmp_path)
    recorders = scripts.Recorders(tmp_path / "commands")
    done = recorders.run(original.script)
    assert done.returncode == 78
    assert "is not there" in done.stderr
    assert [each for each in everything(tmp_path) if "/commands/" not in each[0]] == before
    ended = outcome.classify(original, JobState("FAILED", exit_code="78:0"))
    assert "is not there" in ended.cause


# ------------------------------------------------------------------ scripts submitted by hand


def everything(directory: Path) -> list[tuple[str, bytes]]:
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return [(str(path), path.read_bytes()) for path in files]


def test_the_script_of_a_copy_that_is_run_by_hand_touches_nothing(original, copied, tmp_path):
    before = everything(tmp_path)
    recorders = scripts.Recorders(tmp_path / "commands")
    for name in ("python3", "python"):
        recorders.add(name)
    done = recorders.run(copied.script)
    assert done.returncode == 76
    assert str(copied.directory) in done.stderr
    kept = [each for each in everything(tmp_path) if "/commands/" not in each[0]]
    assert kept == before
    ended = outcome.classify(original, JobState("FAILED", exit_code="76:0"))
    assert "moved or copied" in ended.cause


@pytest.fixture
def slurm_copy(tmp_path) -> tuple[RunPaths, RunPaths]:
    """A run of a cluster, and its copy."""
    original = runs.rendered(tmp_path / "original", "smoke-h200")
    shutil.copytree(tmp_path / "original", tmp_path / "copied")
    return original, inside(original, tmp_path, "copied")


def spooled(paths: RunPaths, tmp_path: Path) -> Path:
    """What slurmd runs: a copy of the script in a directory of its own."""
    return Path(shutil.copy(paths.script, tmp_path / "slurm_script"))


def scontrol(tmp_path: Path, script: Path) -> scripts.Recorders:
    """Commands of which ``scontrol`` shows the job, as Slurm does, below a site's banner."""
    recorders = scripts.Recorders(tmp_path / "commands")
    for name in ("srun", "python3"):
        recorders.add(name)
    command = recorders.add("scontrol")
    shown = f"*** maintenance: Command=on Friday ***\nJobId=7 JobName=x\n   Command={script}\n"
    command.write_text(f"#!/bin/sh\ncat <<'EOF'\n{shown}   WorkDir=/home\nEOF\n")
    return recorders


def test_a_copy_that_is_given_to_sbatch_by_hand_touches_nothing(slurm_copy, tmp_path):
    _, copied = slurm_copy
    before = everything(tmp_path / "original"), everything(tmp_path / "copied")
    recorders = scontrol(tmp_path, copied.script)
    done = recorders.run(spooled(copied, tmp_path), SLURM_JOB_ID="7")
    assert done.returncode == 76
    assert str(copied.directory) in done.stderr
    assert before == (everything(tmp_path / "original"), everything(tmp_path / "copied"))
    assert recorders.calls() == []


def test_a_task_of_an_array_whose_results_moved_touches_nothing(slurm_copy, tmp_path):
    original, copied = slurm_copy
    (tmp_path / "1").symlink_to(copied.directory)
    task = Path(shutil.copy(original.script, tmp_path / "1.sh"))
    recorders = scontrol(tmp_path, original.script)
    done = recorders.run(task, "7_1", SLURM_JOB_ID="8")
    assert done.returncode == 76
    assert recorders.calls() == []
