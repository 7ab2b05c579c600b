"""A job runs as the user who submits it, so nobody else may have written its script."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.launch import runs
from workflow_lib.launch import array, job_script, run_place, run_to_end
from workflow_lib.launch.schedulers.refusals import SubmissionError
from workflow_lib.records.paths import RunPaths


@pytest.fixture
def paths(slurm_paths: RunPaths) -> RunPaths:
    return slurm_paths


def reseal(paths: RunPaths) -> None:
    """What one does who may write the directory: another script, with a checksum that is right."""
    body = paths.script.read_text().split("\n", 2)[2] + "touch /tmp/canary\n"
    paths.script.write_text(job_script.with_checksum(body))
    assert job_script.is_intact(paths.script)


def held(paths: RunPaths, name: str) -> Path:
    code = run_place.code_of(paths.script)
    assert code is not None
    return {"code": code, "code's directory": code.parent}.get(name) or getattr(paths, name)


@pytest.mark.parametrize("name", ["directory", "script", "cell", "code", "code's directory"])
@pytest.mark.parametrize(("bit", "who"), [(stat.S_IWGRP, "group "), (stat.S_IWOTH, "everybody ")])
def test_what_others_may_write_is_not_submitted(name, bit, who, paths, scheduler, tmp_path):
    path = held(paths, name)
    path.chmod(path.stat().st_mode | bit)
    reseal(paths)
    for submit in (
        lambda: run_to_end.run_to_end(paths.directory, "slurm"),
        lambda: array.submit_all([paths.directory], tmp_path / "results", 4),
    ):
        with pytest.raises(SubmissionError, match=rf"^{who}.* {path}, "):
            submit()
    assert scheduler.submitted == []
    assert not paths.submission.exists()


@pytest.mark.parametrize("name", ["directory", "script", "cell"])
def test_what_belongs_to_another_user_is_not_submitted(name, paths, scheduler, monkeypatch):
    path = getattr(paths, name)
    usual = Path.stat
    number = os.getuid() + 54321

    def stat_of(self: Path, **options: bool) -> os.stat_result:
        found = usual(self, **options)
        owned = [*found[:4], number, *found[5:]]
        return os.stat_result(owned) if self == path else found

    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", stat_of)
        with pytest.raises(SubmissionError, match=rf"{path} .* {number}, "):
            run_place.check(paths)
    run_place.check(paths)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_whatever_the_umask_a_rendered_run_is_closed_and_a_strict_one_is_kept(tmp_path, umask):
    usual = os.umask(umask)
    try:
        paths = runs.rendered(tmp_path, "smoke-h200")
    finally:
        os.umask(usual)
    for path in (paths.directory, paths.logs, paths.script, paths.cell):
        assert not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH | umask), path
    run_place.check(paths)


def test_rendering_anew_closes_what_was_open(paths, tmp_path):
    paths.directory.chmod(0o2775)
    paths.script.chmod(0o775)
    paths.script.unlink()
    runs.rendered(tmp_path, "smoke-h200")
    assert stat.S_IMODE(paths.directory.stat().st_mode) == 0o2755
    run_place.check(paths)
