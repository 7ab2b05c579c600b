"""What the pages of cells show: right where it can be worked out, and text whatever was written."""

from __future__ import annotations

import base64
import gzip
import json
import random
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from workflow_lib.records.contract import RankRecord
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.outcomes import ErrorRecord, ExitRecord, Outcome, OutcomeRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.tables import SERIES, STEP_TIMES
from workflow_lib.records.training import Precisions
from workflow_lib.records.whole_files import write_json
from workflow_lib.report.cell_files import HIDDEN, LOG_LINES, cleaning, tail
from workflow_lib.report.cell_pages import cell_pages
from workflow_lib.report.cell_series import MOST_POINTS, PANELS, series_of, steps_of
from workflow_lib.report.figures.html import embedded
from workflow_lib.report.figures.style import EMULATED_MARK, SIMULATED_MARK
from workflow_lib.report.figures.tables import Tables
from workflow_lib.results import run_directory
from workflow_lib.table_files import table

from .full_matrix import cell_row, full_matrix, identity, run_row

KNOWN = identity("h200", "llama3-70b", Degrees(tp=1, pp=1, dp=2), gpus=2)
CELL = KNOWN["cell"]
POWER, TEMPERATURE, CLOCK, THROTTLING = range(len(PANELS))
#: series of two GPUs, at −1, 1, (3) and 5 s: power, temperature; null is no reading, and at 3 s
#: there is no row
READINGS = {
    0: [(-1.0, 400.0, 40.0), (1.0, 501.0, 50.04), (5.0, 600.0, 60.0)],
    1: [(-1.0, 600.0, 50.0), (1.0, 700.0, None), (5.0, None, 70.0)],
}


def series_rows(airflow: tuple[str, str] = ("unknown", "unknown"), cell: str = CELL) -> list[Any]:
    return [
        {
            **{"cell": cell, "run": 2, "node": "node1", "gpu": gpu, "airflow": airflow[gpu]},
            **{"elapsed_s": at, "interval_s": 2.0, "power_w": power, "temperature_c": temperature},
            **{"power_capped_share": 0.25 * (gpu + 1)},
        }
        for gpu, readings in READINGS.items()
        for at, power, temperature in readings
    ]


def step_rows(seconds: list[float | None], warmup: int, counted: int, run: int = 2) -> list[Any]:
    return [
        {
            **{"cell": CELL, "run": run, "step": step, "counted": step >= counted},
            **{"phase": "warmup" if step < warmup else "measured"},
            **{"elapsed_s": 2.0 * (step - warmup), "step_time_s": time},
        }
        for step, time in enumerate(seconds)
    ]


def tables_of(
    cells: list[Any], runs: list[Any], series: list[Any] = (), steps: list[Any] = ()
) -> Tables:
    return Tables(
        tuple(cells), tuple(runs), (), table(list(steps), STEP_TIMES), table(list(series), SERIES)
    )


def pages_of(tables: Tables, results: Path) -> dict[str, Any]:
    """What a browser gets of it."""
    pages = cell_pages(tables, [], {cell["cell"]: "the label" for cell in tables.cells}, results)
    packed = re.search(r">([^<]*)<", str(embedded("cells", pages)))
    assert packed is not None
    return dict(json.loads(gzip.decompress(base64.b64decode(packed[1]))))


def decoded(differences: list[int | None] | None, scale: int = 1) -> list[float | None]:
    """As the page's script does it."""
    assert differences is not None
    last, values = 0, []
    for each in differences:
        last += each or 0
        values.append(None if each is None else last / scale)
    return values


def ended(outcome: Outcome, results: Path, run: int = 1, **more: Any) -> RunPaths:
    """A run's directory with its outcome in it."""
    paths = RunPaths(run_directory(results, CELL, run))
    record = OutcomeRecord(outcome, "a cause", "4711", ("n2", "n1"), 1.0, 2.0, None, False)
    write_json(paths.outcome if outcome.is_result else paths.failure, replace(record, **more))
    paths.logs.mkdir()
    return paths


def one_run(outcome: str = "completed", **more: Any) -> Tables:
    """The tables of a cell with one run."""
    return tables_of(
        [cell_row(KNOWN, outcome)], [{**run_row(KNOWN, 1), "outcome": outcome, **more}]
    )


# -------------------------------------------------------------------------------------- over time


def test_a_point_is_the_mean_the_lowest_and_the_highest_of_gpus():
    over_time = series_of(table(series_rows(), SERIES))[CELL]
    assert (over_time["run"], over_time["gpus"]) == (2, 2)
    assert (over_time["from"], over_time["every"], over_time["points"]) == (-1.0, 2.0, 4)
    power = over_time["panels"][POWER]
    # (501 + 700) / 2 = 600.5; at 3 s nothing was read, at 5 s of one GPU alone.
    assert decoded(power["lines"][0]) == [500, 601, None, None]
    assert decoded(power["low"]) == [400, 501, None, 600]
    assert decoded(power["high"]) == [600, 700, None, 600]
    warmth = over_time["panels"][TEMPERATURE]
    assert decoded(warmth["lines"][0], 10) == [45.0, None, None, 65.0]
    assert decoded(warmth["low"], 10) == [40.0, 50.0, None, 60.0]
    # Nobody knows which are in front.
    assert warmth["lines"][1:] == [None, None]
    assert over_time["panels"][CLOCK] is None, "no reading at all"
    throttled = over_time["panels"][THROTTLING]
    # (25 % + 50 %) / 2 = 37.5 %
    assert decoded(throttled["lines"][0]) == [38, 38, None, 38]
    assert throttled["lines"][1:] == [None, None]
    assert "low" not in throttled


def test_front_and_rear_have_lines_of_their_own():
    over_time = series_of(table(series_rows(("rear", "front")), SERIES))[CELL]
    mean, front, rear = over_time["panels"][TEMPERATURE]["lines"]
    assert decoded(front, 10) == [50.0, None, None, 70.0]
    assert decoded(rear, 10) == [40.0, 50.0, None, 60.0]
    assert decoded(mean, 10) == [45.0, None, None, 65.0]


def test_a_gpu_without_any_reading_is_counted_out():
    rows = [row | {"power_w": None} if row["gpu"] == 1 else row for row in series_rows()]
    power = series_of(table(rows, SERIES))[CELL]["panels"][POWER]
    assert power["of"] == 1
    assert decoded(power["lines"][0]) == [400, 501, None, 600]


def test_steps_are_told_one_by_one_with_warm_up_and_onset():
    steps = table(step_rows([2.0, 1.5, None, 1.25], warmup=1, counted=2), STEP_TIMES)
    told = steps_of(steps, 2)
    assert told is not None
    assert (told["each"], told["warmup"], told["counted"]) == (1, 1, 2.0)
    assert decoded(told["starts"], told["scale"]) == [-2.0, 0.0, 2.0, 4.0]
    assert decoded(told["times"], told["scale"]) == [2.0, 1.5, None, 1.25]
    assert steps_of(steps, 1) is None, "another run"


def test_many_steps_are_joined_but_never_warm_up_with_others():
    seconds: list[float | None] = [9.0, *(1.0 + step % 2 for step in range(2 * MOST_POINTS - 1))]
    told = steps_of(table(step_rows(seconds, warmup=1, counted=1), STEP_TIMES), 2)
    assert told is not None
    assert (told["each"], told["warmup"]) == (2, 1)
    times = decoded(told["times"], told["scale"])
    assert times == [9.0, *[1.5] * (MOST_POINTS - 1), 1.0]
    assert decoded(told["low"], told["scale"])[:2] == [9.0, 1.0]
    assert decoded(told["high"], told["scale"])[:2] == [9.0, 2.0]
    assert decoded(told["starts"], told["scale"])[:3] == [-2.0, 0.0, 4.0]


# --------------------------------------------------------------------------------- cells and runs


def test_figures_have_intervals_and_missing_ones_their_reasons(tmp_path):
    cell = cell_row(KNOWN, tokens_per_s=(1234.5, 1200.0, 1300.0), throttle_power_share=0.5)
    why = json.dumps({"energy_j": "no power", "tokens_per_j": "no energy"})
    runs = [run_row(KNOWN, number, energy_j=None) for number in (1, 2)]
    runs = [runs[1] | {"missing_reasons": why, "tokens_per_s": 1200.0}, runs[0]]
    pages = pages_of(tables_of([cell], runs), tmp_path)

    (figures,) = pages["figures"]
    names = [name for name, *_ in pages["measures"]]
    by_name = dict(zip(names, figures, strict=True))
    assert by_name["Throughput"] == ["1,234", "1,200–1,300"]
    assert by_name["At power cap"] == ["50.0", "50.0–50.0"]
    assert pages["reasons"][by_name["Efficiency"]] == "run 2: no energy"
    # It means nothing in training.
    assert by_name["Decoding per GPU"] is None
    (of_runs,) = pages["runs"]
    assert [run[0] for run in of_runs] == [1, 2]
    second = dict(zip(names, of_runs[1][6], strict=True))
    assert second["Throughput"] == "1,200"
    assert pages["reasons"][second["Energy of all GPUs"]] == "no power"
    assert second["Decoding efficiency"] is None


@pytest.mark.parametrize("outcome", ["infeasible", "not_run"])
def test_a_cell_that_never_ran_has_a_page(tmp_path, outcome):
    runs = [{**run_row(KNOWN, 1), "outcome": "not_run"}] if outcome == "not_run" else []
    pages = pages_of(tables_of([cell_row(KNOWN, outcome)], runs), tmp_path)
    assert pages["cells"][0]["outcome"] == outcome
    for nothing in ("figures", "series", "steps", "logs", "failures"):
        assert pages[nothing] == [None]
    assert "job.sh" in pages["scripts"][0]["instead"]
    assert pages["environments"][0]["sections"] is None
    # What the table has stands for the missing cell.json.
    ((heading, values),) = pages["configurations"][0]["sections"]
    assert heading == "cell"
    assert ["zero_stage", "1"] in values


def test_a_failed_cell_says_what_its_ranks_left(tmp_path):
    paths = ended(Outcome.ERROR, tmp_path, failed_nodes=("n2",))
    (paths.logs / "training.log").write_text("begin\nboom\n", encoding="utf-8")
    (paths.logs / "telemetry.log").touch()
    (paths.logs / "slurm-4711.log").write_text("srun: error\n", encoding="utf-8")
    for rank in range(10):
        said = f"Boom {rank}", "Traceback\n" + "  line\n" * 30 + f"Boom {rank}"
        error = ErrorRecord(rank, "n2", 100.0 - rank, "data", Outcome.ERROR, *said)
        write_json(paths.rank_error(rank), error)
    write_json(paths.rank_exit(3), ExitRecord(3, "n1", 101.0, None, "SIGKILL", True, 1))
    pages = pages_of(one_run("error", cause="a cause"), tmp_path)

    (failure,) = pages["failures"]
    assert (failure["all_errors"], len(failure["errors"])) == (10, 8)
    assert failure["errors"][0].startswith("rank 9 on n2, ")
    assert failure["traceback"].split("\n")[-1] == "Boom 9"
    assert failure["traceback"].count("\n") == 19
    (killed,) = failure["exits"]
    assert killed.startswith("rank 3 on n1 ")
    assert "SIGKILL, for lack" in killed
    (logged,) = pages["logs"]
    assert logged["run"] == 1
    names = [file["name"] for file in logged["files"]]
    assert names == ["logs/training.log", "logs/slurm-4711.log"]
    assert logged["files"][0]["text"] == "begin\nboom"
    assert pages["figures"] == [None]
    assert pages["runs"][0][0][:6] == [1, "error", "a cause", "n1, n2", "n2", "4711"]


def test_logs_are_of_the_first_run_that_failed_and_the_script_of_one_that_did_not(tmp_path):
    for number, outcome in ((1, Outcome.OUT_OF_MEMORY), (2, Outcome.COMPLETED)):
        paths = ended(outcome, tmp_path, number)
        paths.script.write_text(f"#!/bin/bash\n\techo run {number}\n", encoding="utf-8")
        write_json(
            paths.environment, {"recorded_unix_s": 0, "packages": {"torch": None}, "cpus": 8}
        )
        write_json(paths.cell, {"id": CELL, "nodes": 1, "training": {"overlap": True, "seed": 7}})
    runs = [{**run_row(KNOWN, 1), "outcome": "out_of_memory"}, run_row(KNOWN, 2)]
    pages = pages_of(tables_of([cell_row(KNOWN)], runs, series_rows()), tmp_path)
    assert pages["series"][0]["run"] == 2
    ((run, (file,)),) = [(logs["run"], logs["files"]) for logs in pages["logs"]]
    assert (run, file["name"]) == (1, "logs/training.log")
    assert "instead" in file
    assert pages["failures"][0]["run"] == 1
    assert pages["scripts"] == [{"run": 2, "text": "#!/bin/bash\n    echo run 2"}]
    assert pages["environments"][0]["sections"] == [
        ["run", [["recorded", "1970-01-01 00:00:00 UTC"], ["cpus", "8"]]],
        ["packages", [["torch", "–"]]],
    ]
    assert pages["configurations"][0]["sections"] == [
        ["cell", [["id", CELL], ["nodes", "1"]]],
        ["training", [["overlap", "yes"], ["seed", "7"]]],
    ]


def test_precisions_that_ranks_found_stand_beside_those_that_were_asked_for(tmp_path):
    paths = ended(Outcome.COMPLETED, tmp_path)
    write_json(paths.cell, {"training": {"precision": "bf16"}})
    found = Precisions("bf16", "fp32", "fp32", None, "fp32", "fp32")
    rank = RankRecord(0, "n1", 0, "H200", 0, 0, 0, 0, 1, pid=1, started_unix_s=0.0)
    write_json(paths.rank(0), replace(rank, precisions=found))
    asked, (_, of_ranks) = pages_of(one_run(), tmp_path)["configurations"][0]["sections"]
    assert asked == ["training", [["precision", "bf16"]]]
    assert of_ranks == [[name, value or "–"] for name, value in asdict(found).items()]


# ------------------------------------------------------------------------------------ files' text


def test_of_a_log_the_last_lines_are_shown(tmp_path):
    log = tmp_path / "log"
    clean = cleaning({})
    log.write_text("".join(f"line {number}\n" for number in range(100)), encoding="utf-8")
    assert tail(log, clean).split("\n") == [f"line {n}" for n in range(100 - LOG_LINES, 100)]
    log.write_bytes(b"x" * 70_000 + b"\nlast \xff\xfe\n\x1b[31mred\n 1 %\r 50 %\r100 %\r\n\n")
    assert tail(log, clean).split("\n") == ["last \ufffd\ufffd", "\\x1b[31mred", "100 %"]
    log.write_bytes(b"y" * 300)
    assert tail(log, clean) == "y" * 200 + " … (100 more)"
    log.write_bytes(b"z" * 70_000)
    assert "65536 bytes" in tail(log, clean)
    log.write_bytes(b"\n \n")
    assert tail(log, clean) == ""


SECRETS = {"HF_TOKEN": "hf_0123456789", "SSH_PASSPHRASE": "two words\nand-a-second-line"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sent hf_0123456789!", f"sent {HIDDEN}!"),
        ("two words", HIDDEN),
        ("x and-a-second-line y", f"x {HIDDEN} y"),
        ("export WANDB_API_KEY='abcdefgh12'", f"export WANDB_API_KEY='{HIDDEN}'"),
        ('{"my_secret": "abcdefgh12"}', f'{{"my_secret": "{HIDDEN}"}}'),
        ("--api-key=abcdefgh12 x", f"--api-key={HIDDEN} x"),
        ("push --auth-token  'abcdefgh12' x", f"push --auth-token  '{HIDDEN}' x"),
        ("authorization: bearer abcdefgh12", f"authorization: bearer {HIDDEN}"),
        ("--token --dry-running of --tokens 12345678", None),
        ("the token abcdefghij was read", None),
        ("at https://ada:love@lace@host:80/x?a@b", f"at https://{HIDDEN}@host:80/x?a@b"),
        ("https://ada@host/ and http://host:80/a@b", "https://ada@host/ and http://host:80/a@b"),
        ("experts_per_token: 2, time per token: 0.0012345s", None),
        ("PWD is /home/a-directory", None),
        ("NCCL_DEBUG=WARN tokens=abcdefgh12", None),
    ],
)
def test_secrets_are_hidden_and_other_text_is_not(text, shown):
    clean = cleaning({**SECRETS, "PWD": "/home/a-directory", "AUTH": "short", "PATH": "tokens"})
    assert clean(text) == (text if shown is None else shown)


@pytest.mark.parametrize("piece", ["a", "a-", "a--", "a:", "x://", " "])
def test_long_lines_are_cleaned_in_no_time(piece):
    text = piece * (60_000 // len(piece))
    assert cleaning(SECRETS)(text) == text


def test_hostile_text_and_secrets_reach_no_page(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    bad = "</script><img src=x onerror=alert(1)>\x1b]0;x\x07 hf_0123456789 \u2028"
    paths = ended(Outcome.ERROR, tmp_path)
    for file in (paths.script, paths.logs / "training.log", paths.logs / "o<b>.log"):
        file.write_text(f"{bad}\n", encoding="utf-8")
    write_json(paths.environment, {bad: bad, "nested": {bad: [bad], "MY_PASSWORD": "a b c d e f"}})
    write_json(paths.cell, {bad: {"x": bad}})
    error = ErrorRecord(0, "node1", 1.0, bad, Outcome.ERROR, bad, bad)  # a node is a name
    write_json(paths.rank_error(0), error)
    reason = json.dumps({"energy_j": bad})
    tables = one_run("error", cause=bad, missing_reasons=reason)
    source = str(embedded("cells", cell_pages(tables, [], {CELL: bad}, tmp_path)))
    # Its own element's.
    assert source.count("<") == 2
    text = json.dumps(pages_of(tables, tmp_path), ensure_ascii=False)
    assert "hf_0123456789" not in text
    assert "a b c d e f" not in text
    assert text.isprintable()
    # As text.
    assert text.count(bad[:37] + r"\\x1b]0;x\\x07") >= 9


def test_a_damaged_log_is_shown_and_a_damaged_record_named(tmp_path):
    paths = ended(Outcome.ERROR, tmp_path)
    (paths.logs / "training.log").write_bytes(b"\xff\x00\xfe\n")
    paths.script.mkdir()
    pages = pages_of(one_run("error"), tmp_path)
    assert pages["logs"][0]["files"][0]["text"] == "\ufffd\\x00\ufffd"
    assert "job.sh" in pages["scripts"][0]["instead"]
    for path, text in (
        (paths.rank_error(2), '{"rank": 2}'),
        (paths.environment, "[]"),
        (paths.cell, "{"),
        (paths.failure, "null"),
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        with pytest.raises(RecordError, match=re.escape(str(path))):
            pages_of(one_run("error"), tmp_path)
        path.unlink()


# -------------------------------------------------------------------------------------- all of it


def test_the_full_matrix_fits_and_is_the_same_each_time(tmp_path):
    count = 24
    tables = full_matrix(count=count)
    script = (ROOT / "tests" / "launch" / "golden" / "h200.sh").read_text(encoding="utf-8")
    chance = random.Random(1)
    for cell in tables.cells:
        paths = RunPaths(run_directory(tmp_path, cell["cell"], 1))
        paths.logs.mkdir(parents=True)
        digest = f"{chance.getrandbits(256):064x}"
        paths.script.write_text(script.replace("02c848fd", digest), encoding="utf-8")
        write_json(paths.environment, {"script_sha256": digest, "node": "node1"})
        lines = (f"[rank{n}] {chance.random()} step {n} of {cell['cell']}" for n in range(50))
        (paths.logs / "training.log").write_text("\n".join(lines), encoding="utf-8")
    label = {cell["cell"]: cell["cell"] for cell in tables.cells}
    first = embedded("cells", cell_pages(tables, [], label, tmp_path))
    # 1.6 MB for the 305 cells of the study.
    assert len(first) / count * 305 < 1.6e6
    # Neither the order of rows in a table nor the place of the results tells.
    assert tables.series is not None
    other = replace(
        tables,
        cells=tables.cells[::-1],
        runs=tables.runs[::-1],
        gpus=tables.gpus[::-1],
        series=tables.series.sample(fraction=1.0, shuffle=True, seed=1),
    )
    (tmp_path / "cells").rename(tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "moved").rename(tmp_path / "elsewhere" / "cells")
    assert embedded("cells", cell_pages(other, [], label, tmp_path / "elsewhere")) == first


def test_a_cell_on_emulated_nodes_has_a_mark_and_what_is_emulated(tmp_path):
    known = {**KNOWN, "emulated": "two daemons of one host"}
    tables = tables_of([cell_row(known)], [run_row(known, 1)])
    (head,) = pages_of(tables, tmp_path)["cells"]
    assert head["mark"] == f"{SIMULATED_MARK}, {EMULATED_MARK}"
    (place,) = (told for heading, told in head["facts"] if heading == "Place")
    assert known["emulated"] in place
    real = tables_of([{**cell_row(KNOWN), "simulated": False}], [run_row(KNOWN, 1)])
    (head,) = pages_of(real, tmp_path)["cells"]
    assert head["mark"] == ""
