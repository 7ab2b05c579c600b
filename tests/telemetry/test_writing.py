"""Rows are written beside the loop that reads."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from workflow_lib.records.telemetry_columns import SAMPLER_BLOCKS
from workflow_lib.telemetry import files
from workflow_lib.telemetry.files import SampleFile, Writing
from workflow_lib.telemetry.source import TelemetryError


def test_a_file_system_that_does_not_answer_holds_up_no_reading(tmp_path, monkeypatch):
    answers = threading.Event()
    write = os.write

    def slow(descriptor: int, chunk: bytes) -> int:
        assert answers.wait(60)
        return write(descriptor, chunk)

    monkeypatch.setattr(files.os, "write", slow)
    file = SampleFile(tmp_path / "blocks.csv", SAMPLER_BLOCKS)
    writing = Writing(file, tmp_path / "stop")
    for number in range(100):
        file.add({"ticks": number})
        # Would never come back if it waited.
        writing.hand_over([file])
    assert (tmp_path / "blocks.csv").read_text() == ""
    answers.set()
    writing.wait()
    lines = (tmp_path / "blocks.csv").read_text().splitlines()
    assert [line.split(",")[3] for line in lines[1:]] == [str(number) for number in range(100)]
    writing.end()
    file.close()


def test_what_cannot_be_written_is_said_the_next_time(tmp_path):
    file = SampleFile(tmp_path / "blocks.csv", SAMPLER_BLOCKS)
    writing = Writing(file, tmp_path / "stop")
    (tmp_path / "blocks.csv").unlink()
    writing.hand_over([file])
    with pytest.raises(TelemetryError, match="removed or moved"):
        writing.wait()
    with pytest.raises(TelemetryError, match="removed or moved"):
        writing.hand_over([file])
    with pytest.raises(TelemetryError, match="removed or moved"):
        writing.end()
    file.close()


def test_a_file_system_that_cannot_tell_of_the_request_is_asked_again(tmp_path, monkeypatch):
    exists = Path.exists
    asked = []

    def stale(path: Path) -> bool:
        asked.append(path)
        if len(asked) < 3:
            raise OSError(errno.ESTALE, "Stale file handle")
        return exists(path)

    monkeypatch.setattr(Path, "exists", stale)
    (tmp_path / "stop").touch()
    file = SampleFile(tmp_path / "blocks.csv", SAMPLER_BLOCKS)
    writing = Writing(file, tmp_path / "stop")
    while not writing.asked_to_stop:
        writing.hand_over([file])
        writing.wait()
    writing.end()
    file.close()


def test_the_request_to_stop_is_seen_without_anything_to_write(tmp_path):
    file = SampleFile(tmp_path / "blocks.csv", SAMPLER_BLOCKS)
    writing = Writing(file, tmp_path / "stop")
    assert not writing.asked_to_stop
    (tmp_path / "stop").touch()
    while not writing.asked_to_stop:
        writing.hand_over([])
    writing.end()
    file.close()
