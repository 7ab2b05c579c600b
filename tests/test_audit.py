"""The auditor computes what the reduction computes, and accepts no run whose files were changed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import programs
from tests.analysis.synthetic_run import Run
from workflow_lib import audit
from workflow_lib.analysis.reduce import reduce_run

RUN = "results/cells/made-up/tiny/a_0/run1"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = tmp_path / RUN
    Run().write(directory)
    reduce_run(directory)
    return directory


def said(directory: Path) -> list[str]:
    (files,) = audit.runs_below(directory)
    return audit.audit_run(files)[1]


def change(path: Path, pattern: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    changed = re.sub(pattern, new, text, count=1)
    assert changed != text
    path.write_text(changed, encoding="utf-8")


def test_it_agrees_with_the_reduction(run, capsys):
    """400 and 600 W over 20 s and 128 tokens, by hand."""
    (files,) = audit.runs_below(run)
    found, differs = audit.audit_run(files)
    assert (differs, found.values["energy_j"]) == ([], pytest.approx(20_000))
    assert found.values["energy_per_token_j"] == pytest.approx(20_000 / 128)
    assert audit.main([str(run.parents[5])]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("1 runs audited, 0 differ")


def change_summary(run: Path) -> None:
    path = run / "summary.json"
    summary = json.loads(path.read_text())
    summary["run"]["energy_j"] *= 1.00001
    path.write_text(json.dumps(summary))


def with_a_gap(run: Path) -> None:
    path = run / "telemetry" / "node1.csv"
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*rows[:140], *rows[152:]]))


def with_a_late_start(run: Path) -> None:
    path = run / "telemetry" / "node1.csv"
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join([rows[0], *rows[130:]]))


def with_a_counter_that_falls(run: Path) -> None:
    path = run / "telemetry" / "node1-counters.csv"
    rows = path.read_text().splitlines(keepends=True)
    names = rows[0].strip().split(",")
    fields = rows[145].strip().split(",")
    fields[names.index("energy_j")] = "5"
    rows[145] = ",".join(fields) + "\n"
    path.write_text("".join(rows))


def without_a_step(run: Path) -> None:
    path = run / "steps" / "rank1.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def with_other_tokens(run: Path) -> None:
    change(run / "steps" / "rank1.csv", r",32,", ",31,")
    change(run / "steps" / "rank1.csv", r"(2,measured.*),32,", r"\1,31,")


def with_steps_apart(run: Path) -> None:
    """Rank 1 begins its last step after rank 0 has ended it."""
    path = run / "steps" / "rank1.csv"
    text = path.read_text()
    path.write_text(text.replace("1700000030.0,", "1700000041.0,").replace("0039.0,", "0042.0,"))


SPOILT: dict[str, Callable[[Path], object]] = {
    "another summary": change_summary,
    "no power": lambda run: (run / "telemetry/node1.csv").unlink(),
    "no telemetry": lambda run: (run / "telemetry/node1.json").unlink(),
    "another GPU": lambda run: change(
        run / "steps/rank1.json", '"gpu_uuid": null', '"gpu_uuid": "GPU-of-another"'
    ),
    "a gap": with_a_gap,
    "a late start": with_a_late_start,
    "a counter that falls": with_a_counter_that_falls,
    "a step less": without_a_step,
    "other tokens": with_other_tokens,
    "steps apart": with_steps_apart,
    "text for a number": lambda run: change(run / "telemetry/node1.csv", r"400", "4OO"),
    "an endless number": lambda run: change(run / "telemetry/node1.csv", r",400", ",inf"),
    "torn in the middle": lambda run: change(
        run / "telemetry/node1.csv", r"\n([^\n]*),[^\n,]*\n", r"\n\1\n"
    ),
    "no object": lambda run: (run / "steps/rank0.json").write_text("[]"),
    "a field less": lambda run: change(run / "cell.json", '"measured_steps"', '"measured"'),
}


@pytest.mark.parametrize("how", SPOILT)
def test_what_was_changed_is_said(run, how):
    assert said(run) == []
    SPOILT[how](run)
    assert said(run)
    assert audit.main([str(run)]) == 1


def test_a_torn_last_line_is_left_out(run):
    with (run / "telemetry" / "node1.csv").open("a", encoding="utf-8") as stream:
        stream.write("1700000051.0,0,4")
    assert said(run) == []


def test_a_run_that_is_no_result_is_not_audited(tmp_path, capsys):
    Run().write(tmp_path / "run1")
    (tmp_path / "run1" / "outcome.json").unlink()
    assert audit.main([str(tmp_path)]) == 1
    assert "1 without" in capsys.readouterr().out


def packed(run: Path, path: Path) -> Path:
    """The run in an archive, with its manifest."""
    root = run.parents[5]
    with zipfile.ZipFile(path, "w") as archive:
        lines = []
        for file in sorted(each for each in root.rglob("*") if each.is_file()):
            if file == path:
                continue
            name = f"data/{file.relative_to(root)}"
            lines.append(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {name}\n")
            archive.write(file, f"sweep/{name}")
        archive.writestr("sweep/manifest-sha256.txt", "".join(lines))
    return path


def test_an_archive_is_read_as_it_lies_there(run, tmp_path):
    path = packed(run, tmp_path / "sweep.zip")
    assert audit.main([str(path)]) == 0


def test_an_archive_that_is_not_what_its_manifest_states(run, tmp_path):
    path = packed(run, tmp_path / "sweep.zip")
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    name = f"sweep/data/{RUN}/steps/rank0.csv"
    content[name] = content[name].replace(b"3.0", b"3.1", 1)
    with zipfile.ZipFile(path, "w") as archive:
        for each, bytes_of in content.items():
            archive.writestr(each, bytes_of)
    ((_, differs),) = [audit.audit_run(files) for files in audit.runs_below(path)]
    assert "manifest" in differs[0]


def test_bytes_changed_at_random_are_never_accepted_wrongly(run):
    """A changed byte changes nothing that was computed, or it is said, or the file cannot be read.
    Nothing else is raised."""
    (files,) = audit.runs_below(run)
    before, _ = audit.audit_run(files)
    names = ("steps/rank0.csv", "steps/rank1.csv", "steps/rank1.json", "cell.json", "summary.json")
    names += ("telemetry/node1.csv", "telemetry/node1-counters.csv", "telemetry/node1.json")
    chosen = random.Random(7)
    noticed = 0
    for _ in range(int(os.environ.get("TRIPTYCH_FUZZ_INPUTS", 400))):
        path = run / chosen.choice(names)
        whole = path.read_bytes()
        place = chosen.randrange(len(whole))
        path.write_bytes(whole[:place] + bytes([chosen.randrange(32, 127)]) + whole[place + 1 :])
        (files,) = audit.runs_below(run)
        after, differs = audit.audit_run(files)
        noticed += bool(differs)
        if not differs:
            assert after is not None
            assert after.values == pytest.approx(before.values, rel=audit.SAME_SHARE)
        path.write_bytes(whole)
    assert noticed > 20


def test_it_needs_the_standard_library_alone(run):
    path = Path(audit.__file__)
    done = programs.run([sys.executable, "-I", "-S", str(path), str(run)])
    assert (done.returncode, done.stderr) == (0, "")
