"""A script is as rendered, to the byte, or it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from workflow_lib.launch import job_script

BODY = "#SBATCH --nodes=2\n\necho 'it runs'\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job.sh"
    path.write_text(job_script.with_checksum(BODY))
    return path


def test_a_sealed_script_is_intact_and_runs_under_bash(script):
    lines = script.read_text().splitlines()
    assert job_script.is_intact(script)
    assert lines[0].startswith("#!")
    assert lines[2:] == BODY.splitlines()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"nodes=2", b"nodes=3"),  # edited
        (b"\n", b"\r\n"),  # saved by an editor with other line ends
        (b"it runs'\n", b"it runs'"),  # truncated by one byte
        (b"it runs'\n", b"it runs'\n\n"),
        (b"echo", b"\xff"),  # no text at all
        (b"# sha256", b"# SHA256"),  # no longer a checksum
        (b"bash\n#", b"bash\n#SBATCH --nodes=9\n#"),  # a line above the checksum
        (b"env bash", b"env sh"),
        *((length, b"") for length in (0, 10, 40, 100, 130)),  # truncated to so many bytes
    ],
)
def test_any_edit_is_noticed(script, old, new):
    content = script.read_bytes()
    changed = content[:old] if isinstance(old, int) else content.replace(old, new)
    assert changed != content
    script.write_bytes(changed)
    assert not job_script.is_intact(script)
