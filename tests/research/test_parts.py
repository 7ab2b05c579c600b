"""Parts of a benchmark stand alone."""

import json

from benchmarks.measuring.parts import Log, run_parts
from research.measuring.sensor_response import Window


def test_a_part_that_fails_is_told_and_the_next_one_runs(tmp_path, capsys):
    log = Log(tmp_path / "figures.jsonl")

    def fails():
        raise RuntimeError("no such sensor")

    parts = {
        "first": fails,
        "second": lambda: log.row("second", fit=Window(1, 0.5, 2, 0, 1, 0)),
    }
    code = run_parts(parts, ["first", "second"], log)

    rows = [json.loads(line) for line in (tmp_path / "figures.jsonl").read_text().splitlines()]
    assert code == 1
    assert [row["part"] for row in rows] == ["first", "second"]
    assert rows[0]["error"] == "RuntimeError: no such sensor"
    assert rows[1]["fit"]["high_s"] == 2
    assert "no such sensor" in capsys.readouterr().out
    assert run_parts(parts, ["second"], log) == 0


def test_a_table_is_aligned(capsys):
    Log(None).table([{"name": "a", "W": "700.0"}, {"name": "longer", "W": "5"}])

    assert capsys.readouterr().out == "name        W\na       700.0\nlonger      5\n"
