"""Checksums of what was made: written beside it, and compared with it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.programs import well
from workflow_lib.damage import damaged_in_runs
from workflow_lib.records.checksums import damaged, write_checksums
from workflow_lib.records.outcomes import Outcome, OutcomeRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json


@pytest.fixture
def made(tmp_path: Path) -> list[Path]:
    found = [tmp_path / "a table.parquet", tmp_path / "figures" / "ü.svg"]
    found[1].parent.mkdir()
    for number, path in enumerate(found):
        path.write_bytes(bytes([number]) * 1000)
    write_checksums(tmp_path / ".made.sha256", found)
    return found


def test_sha256sum_reads_them(tmp_path, made):
    command = ["sha256sum", "--check", "--strict", ".made.sha256"]
    well(subprocess.run(command, cwd=tmp_path, capture_output=True, check=False))


def test_what_is_as_it_was_made_is_not_damaged(tmp_path, made):
    assert damaged(tmp_path / ".made.sha256", made) == []


@pytest.mark.parametrize("content", [b"", b"\1" * 500, b"\1" * 999 + b"\3"])
def test_one_that_is_cut_or_flipped_is_whatever_its_time(tmp_path, made, content):
    before = made[1].stat()
    made[1].write_bytes(content)
    os.utime(made[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    assert damaged(tmp_path / ".made.sha256", made) == [made[1]]


def test_one_that_is_gone_or_no_file_is(tmp_path, made):
    made[0].unlink()
    assert damaged(tmp_path / ".made.sha256", made) == [made[0]]
    os.mkfifo(made[0])
    assert damaged(tmp_path / ".made.sha256", made) == [made[0]]


@pytest.mark.parametrize("content", [b"", b"\xff\n", b"0  ../../x\n0  /etc/passwd\n"])
def test_where_the_checksums_are_damaged_all_is(tmp_path, made, content):
    (tmp_path / ".made.sha256").write_bytes(content)
    assert damaged(tmp_path / ".made.sha256", made) == made


def test_without_checksums_nothing_is_known_to_be_damaged(tmp_path, made):
    (tmp_path / ".made.sha256").unlink()
    made[0].write_bytes(b"")
    assert damaged(tmp_path / ".made.sha256", made) == []


def test_an_outcome_that_nobody_can_read_is_damaged_and_no_other(tmp_path):
    ended = OutcomeRecord(
        outcome=Outcome.COMPLETED,
        cause="all ranks ended in order",
        job_id="7",
        nodes=("node1",),
        started_unix_s=1.0,
        ended_unix_s=2.0,
        scheduler_state="COMPLETED",
        script_edited=False,
        failed_nodes=(),
    )
    directories = [tmp_path / name for name in ("good", "emptied", "cut", "none")]
    for directory in directories[:3]:
        directory.mkdir()
        write_json(RunPaths(directory).outcome, ended)
    RunPaths(directories[1]).outcome.write_bytes(b"")
    whole = RunPaths(directories[2]).outcome.read_bytes()
    RunPaths(directories[2]).outcome.write_bytes(whole[: len(whole) // 2])

    found = damaged_in_runs(directories)

    assert found == [RunPaths(directory).outcome for directory in directories[1:3]]
