"""Many runs are reduced by few processes."""

import pytest

from workflow_lib.analysis import reduce
from workflow_lib.analysis.__main__ import main

from .synthetic_run import Run


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_damaged_run_keeps_no_other_from_being_reduced(processes, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reduce, "_CHUNK", 1)
    runs = [Run().write(tmp_path / f"cell{number}" / "run1") for number in range(3)]
    runs[1].rank_steps(1).unlink()
    directories = [str(run.directory) for run in runs]
    assert main(["reduce", "--processes", processes, *directories]) == 1
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith("reduce: ")
    assert str(runs[1].rank_steps(1)) in message
    assert [run.summary.is_file() for run in runs] == [True, False, True]


def test_both_ways_give_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(reduce, "_CHUNK", 1)
    written = []
    for processes in ("1", "2"):
        runs = [Run().write(tmp_path / f"{processes}{number}" / "run1") for number in range(2)]
        assert main(["reduce", "--processes", processes, *(str(r.directory) for r in runs)]) == 0
        written.append(
            [path.read_bytes() for r in runs for path in (r.summary, r.step_times, r.series)]
        )
    assert written[0] == written[1]


def test_no_runs_are_no_problem():
    assert reduce.reduce_runs([], processes=2) == []
