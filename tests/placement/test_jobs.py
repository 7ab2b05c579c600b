"""GPUs that are slow or hot, by all measured jobs."""

from __future__ import annotations

import json
import math
import random
import zipfile
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from workflow_lib.measure import conclude
from workflow_lib.placement import __main__ as command
from workflow_lib.placement import jobs
from workflow_lib.placement.slots import BEHIND


def job(
    directory: Path,
    name: str,
    gpus: list[tuple[str, int, float, float]],
    power_w: float = 600.0,
    busy_percent: float | None = 100.0,
    **changed: Any,
) -> None:
    """A measured job: each GPU's node, index, clock and temperature."""
    (directory / name).mkdir(parents=True)
    nodes = sorted({node for node, *_ in gpus})
    record = {
        **{
            "program": "job",
            "started_unix_s": 0.0,
            "ended_unix_s": 9.0,
            "rung": 0,
            "simulated": False,
            "nodes": nodes,
        },
        **{"values": {}, "missing": {}, "invalid": [], "window_unix_s": [0.0, 10.0]},
        "gpus": [
            {
                **{"node": node, "gpu": gpu, "uuid": f"GPU-{node}-{gpu}", "name": "H100"},
                **{"sm_clock_mean_mhz": clock, "temperature_mean_c": warmth},
                **{"power_mean_w": power_w, "power_limit_w": 700.0},
                "utilisation_mean_percent": busy_percent,
            }
            for node, gpu, clock, warmth in gpus
        ],
        **changed,
    }
    (directory / name / "measured.json").write_text(json.dumps(record))


def of_jobs(directory: Path, count: int, slow: float = 0.95, hot_c: float = 8.0) -> None:
    """Jobs of eight GPUs at different loads; GPU 3 is slow, and GPU 5 hot."""
    noise = random.Random(1)
    for number in range(count):
        clock = noise.uniform(1400, 1900)
        gpus = [
            (
                "n1",
                gpu,
                clock * (slow if gpu == 3 else 1.0) * math.exp(noise.gauss(0, 0.002)),
                60 + noise.gauss(0, 0.5) + (hot_c if gpu == 5 else 0.0),
            )
            for gpu in range(8)
        ]
        job(directory, f"job{number}", gpus)


def test_a_slow_and_a_hot_gpu_are_named_and_no_other(tmp_path):
    of_jobs(tmp_path, 8)
    fleet = jobs.survey(tmp_path, BEHIND)
    assert [row["gpu"] for row in fleet.rows if row["slow"]] == [3]
    assert [row["gpu"] for row in fleet.rows if row["hot"]] == [5]
    slowest = fleet.rows[0]
    assert (slowest["gpu"], slowest["gpu_uuid"], slowest["jobs"]) == (3, "GPU-n1-3", 8)
    assert slowest["clock_effect_low"] < math.log(0.95) < slowest["clock_effect_high"]


def test_a_clock_is_below_others_by_a_share_of_theirs(tmp_path):
    # One of two H100 of a host was at 345 of 1980 MHz: 82.6 % below, and the other 474 % above it.
    for number in range(3):
        job(tmp_path / "deep", f"job{number}", [("n1", 0, 345.0, 60.0), ("n1", 1, 1980.0, 60.0)])
        job(tmp_path / "nearly", f"job{number}", [("n1", 0, 905.0, 60.0), ("n1", 1, 1000.0, 60.0)])
    table = jobs.lines_of(jobs.survey(tmp_path / "deep", BEHIND))[0].splitlines()
    assert [line.split()[3] for line in table[2:]] == ["-82.6", "+473.9"]
    assert not any(row["slow"] for row in jobs.survey(tmp_path / "nearly", 0.099).rows)
    assert any(row["slow"] for row in jobs.survey(tmp_path / "nearly", 0.09).rows)


def test_two_jobs_give_no_interval_and_no_verdict(tmp_path):
    of_jobs(tmp_path, 2)
    assert {row["slow"] for row in jobs.survey(tmp_path, BEHIND).rows} == {None}


def test_idle_gpus_other_models_and_jobs_that_are_not_valid_do_not_count(tmp_path):
    two = [("n1", 0, 1980.0, 40.0), ("n1", 1, 345.0, 30.0)]
    job(tmp_path, "idle", two, busy_percent=3.0)
    job(tmp_path, "not told", two, power_w=120.0, busy_percent=None)
    job(tmp_path, "one", two[:1])
    job(tmp_path, "bad", two, invalid=["telemetry/n1.csv: no power"])
    job(tmp_path, "running", two, ended_unix_s=None)
    for name, content in (("torn", "{"), ("lacking", '{"gpus": [{}]}')):
        job(tmp_path, name, two)
        (tmp_path / name / "measured.json").write_text(content)
    fleet = jobs.survey(tmp_path, BEHIND)
    assert fleet.rows == []
    assert fleet.left_out == {"no_pair": 3, "not_valid": 1, "unfinished": 1, "damaged": 2}


def test_gpus_without_a_name_may_be_of_two_models(tmp_path):
    # An H100 at 1980 MHz beside an A100 at 1410 MHz, whose recording has no column of names.
    for number, name in enumerate(("", None)):
        job(tmp_path, f"job{number}", [("n1", 0, 1980.0, 60.0), ("n1", 1, 1410.0, 60.0)])
        path = tmp_path / f"job{number}" / "measured.json"
        record = json.loads(path.read_text())
        record["gpus"] = [{**gpu, "name": name} for gpu in record["gpus"]]
        path.write_text(json.dumps(record))
    fleet = jobs.survey(tmp_path, BEHIND)
    assert fleet.rows == []
    assert fleet.left_out == {"no_name": 2}


def test_false_alarms_stay_below_what_the_coverage_allows(tmp_path):
    alarms = 0
    for seed in range(60):
        noise = random.Random(seed)
        directory = tmp_path / str(seed)
        for number in range(4):
            # No GPU differs from the others.
            gpus = [("n1", g, 1700 * math.exp(noise.gauss(0, 0.01)), 60.0) for g in range(8)]
            job(directory, f"job{number}", gpus)
        rows = jobs.survey(directory, BEHIND).rows
        alarms += any(row["clock_effect_high"] < 0 or row["clock_effect_low"] > 0 for row in rows)
    assert alarms <= 10  # 10 % of 60 would be 6, in jobs that share the mean of their GPUs


def test_the_command_prints_and_writes_all(tmp_path, capsys):
    of_jobs(tmp_path / "jobs", 4)
    words = ["slots", str(tmp_path / "jobs"), "--output", str(tmp_path / "out")]
    assert command.main(words) == 0
    assert len((tmp_path / "out/slots.jsonl").read_text().splitlines()) == 8
    assert len(capsys.readouterr().out.splitlines()) > 4
    # What has no jobs is a sweep, which needs a place for its page.
    assert command.main(["slots", str(tmp_path / "out")]) == 1


def test_jobs_that_an_earlier_version_summed_up_lead_to_their_mend(tmp_path):
    with zipfile.ZipFile(ROOT / "evidence/measured/trainers-h100x2.zip") as archive:
        archive.extractall(tmp_path)
    assert jobs.survey(tmp_path, BEHIND).left_out == {"older": 7}
    for path in tmp_path.rglob("measured.json"):
        assert conclude.main([str(path.parent)]) == 0
    fleet = jobs.survey(tmp_path, BEHIND)
    assert len(fleet.rows) == 2
    assert "older" not in fleet.left_out


def test_jobs_in_the_evidence_are_read(tmp_path):
    with zipfile.ZipFile(ROOT / "evidence/measured/site-h100x2.zip") as archive:
        archive.extractall(tmp_path)
    fleet = jobs.survey(tmp_path, BEHIND)
    assert len(fleet.rows) == 2
    assert "damaged" not in fleet.left_out
    nothing = jobs.survey(tmp_path / "2", BEHIND)
    assert nothing.rows == []
    assert not any("GPU 0" in line or "surely" in line for line in jobs.lines_of(nothing))
