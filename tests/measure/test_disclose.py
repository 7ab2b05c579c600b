"""What ``triptych disclose`` states of measured commands, beside numbers made by hand."""

from __future__ import annotations

import csv
import json
import zipfile
from collections import Counter
from pathlib import Path
from statistics import fmean

import pytest

from tests.measure.runs import measure, measured
from workflow_lib.audit import DamagedError, runs_below
from workflow_lib.measure import disclose
from workflow_lib.measure.disclose import Job, main, read_job, read_jobs, terms

KWH = 3.6e6
SLOTS = Path(__file__).parents[2] / "evidence/evidence-slots-x2.zip"


def job(
    hours: float = 1.0, kwh: float = 1.0, gpus: int = 2, at_h: float = 0.0, **of_tokens: float
) -> Job:
    told = {"token_j": None, "tokens_per_s": None, **of_tokens}
    began, ended = (1e9 + 3600 * h for h in (at_h, at_h + hours))
    return Job("a", began, ended, Counter({"H100": gpus}), KWH * kwh, **told)


def table(jobs, tokens=None, **given):
    return {each.name: each for each in terms(jobs, tokens, given)}


def test_times_and_energies_of_jobs_are_sums_with_what_sensors_leave():
    # The second begins when half of the first is over.
    found = table([job(hours=2, kwh=2.5, at_h=0.5), job()])

    assert (found["GPU-hours"].value, found["training time"].value) == (6, 2.5)
    energy = found["energy of the GPUs"]
    assert (energy.value, energy.kind) == (pytest.approx(3.5), "measured")
    # ±12.5 W of each GPU are 0.075 kWh in 6 GPU-hours; gains are of −10 to 10 %.
    assert energy.ends == pytest.approx(((3.5 - 0.075) / 1.1, (3.5 + 0.075) / 0.9))
    unknown = [each for each in found.values() if each.kind == "not known"]
    assert [(each.value, each.unit) for each in unknown] == [
        *4 * [(None, "kWh")],
        (None, "kg CO2e"),
        (None, "FLOP"),
    ]


def test_a_whole_training_is_estimated_by_the_steps_of_its_jobs():
    jobs = [job(token_j=0.09, tokens_per_s=1000), job(token_j=0.11, tokens_per_s=800)]

    found = table(jobs, tokens=3.6e9)

    assert {found[name].kind for name in ("GPU-hours", "training time")} == {"estimated"}
    # 1,000 and 1,250 hours on two GPUs.
    assert found["training time"].value == pytest.approx(1125)
    assert found["GPU-hours"].ends == pytest.approx((2000, 2500))
    energy = found["energy of the GPUs"]
    assert energy.value == pytest.approx(100)
    assert energy.ends == pytest.approx(((90 - 31.25) / 1.1, (110 + 31.25) / 0.9))


def test_what_is_given_is_named_with_its_source():
    found = table([job()], pue=(1.5, "the site"), grid=(200.0, "the grid"), flops=(2e24, "6 N D"))

    cooled = found["energy with cooling, of the GPUs"]
    assert cooled.value == pytest.approx(1.5)
    emitted = found["emissions, of the GPUs"]
    assert (emitted.value, emitted.kind) == (pytest.approx(0.3), "estimated")
    assert "the grid" in emitted.how
    assert found["computation"][1:] == (2e24, "FLOP", None, "given", "6 N D")


@pytest.mark.parametrize(
    "jobs", [[job()], [job(token_j=1, tokens_per_s=1), job(gpus=1, token_j=1, tokens_per_s=1)]]
)
def test_jobs_that_tell_nothing_of_a_whole_training_are_refused(jobs):
    with pytest.raises(DamagedError):
        terms(jobs, 1e9, {})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A measured command whose simulated GPU passes for one."""
    log = "import time\nfor i in range(8):\n    print(f'step {i}', flush=True); time.sleep(0.2)"
    done = measure(
        tmp_path,
        *("python3", "-c", f"import time; time.sleep(1)\n{log}"),
        options=("--steps=log", "--log", str(tmp_path / "out.log"), "--tokens-per-step=1000"),
    )
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "run"
    for path in (directory / "measured.json", *directory.glob("telemetry/*.json")):
        record = json.loads(path.read_bytes())
        if "simulated" in record:
            path.write_text(json.dumps({**record, "simulated": False}), encoding="utf-8")
    return directory


def test_a_command_is_disclosed_from_its_begin_to_its_end(run, tmp_path, capsys):
    (read,) = read_jobs(run)
    record = measured(tmp_path)

    assert read.duration_s == record["ended_unix_s"] - record["started_unix_s"] > 2.6
    # An idle GPU of a known power, all of the time.
    power_w = record["values"]["power_mean_w"]
    assert read.energy_j == pytest.approx(power_w * read.duration_s, rel=0.1)

    output = tmp_path / "disclosure.md"
    # The directory that holds it stands for it.
    assert main([str(tmp_path), "--output", str(output)]) == 0
    text = output.read_text(encoding="utf-8")
    assert f"{disclose._number(read.energy_j / KWH)} kWh" in text
    (stated,) = json.loads((tmp_path / "disclosure.spdx.json").read_bytes())[
        "ai_trainingEnergyConsumption"
    ]
    assert float(stated["ai_energyQuantity"]) == pytest.approx(read.energy_j / KWH, rel=1e-3)
    assert stated["ai_energyUnit"] == "kilowattHour"

    assert main([str(run), str(run), "--output", str(tmp_path / "twice.md")]) == 1
    assert not (tmp_path / "twice.md").exists()
    for wrong in (["--pue", "1.2"], ["--pue", "0.9", "--pue-source", "nobody"]):
        with pytest.raises(SystemExit):
            main([str(run), *wrong])
    capsys.readouterr()


def test_what_is_simulated_or_not_valid_is_not_disclosed(run):
    path = run / "measured.json"
    record = json.loads(path.read_bytes())
    for change in ({"simulated": True}, {"invalid": ["why"]}, {"ended_unix_s": None}):
        path.write_text(json.dumps({**record, **change}), encoding="utf-8")
        (files,) = runs_below(run)
        with pytest.raises(DamagedError):
            read_job(files)


def test_a_sweep_is_disclosed_with_all_its_runs(tmp_path, capsys):
    # The counters of both GPUs, from the first to the last reading of each of the six runs.
    counted_j = 0.0
    with zipfile.ZipFile(SLOTS) as archive:
        (first, *_) = (name for name in archive.namelist() if name.endswith("run1/ended.json"))
        ended = json.loads(archive.read(first))
        counters = [name for name in archive.namelist() if name.endswith("-counters.csv")]
        for name in counters:
            rows = [*csv.DictReader(archive.read(name).decode().splitlines())]
            for gpu in "01":
                readings = [row["energy_j"] for row in rows if row["gpu"] == gpu]
                known_j = [float(reading) for reading in readings if reading]
                counted_j += known_j[-1] - known_j[0]

    jobs = [*read_jobs(SLOTS)]

    assert len(jobs) == len(counters) == 6
    assert sum(job.energy_j for job in jobs) == pytest.approx(counted_j, rel=0.01)
    with pytest.raises(DamagedError):  # The two orders of the GPUs are two cells.
        terms(jobs, 1e12, {})
    (cell, *_) = {job.cell for job in jobs}
    repeats = [job for job in jobs if job.cell == cell]
    hours = terms(repeats, 1e12, {})[1].value
    assert hours == pytest.approx(fmean(1e12 / job.tokens_per_s / 3600 for job in repeats))
    # The first run's job, by its ended.json.
    assert jobs[0].duration_s == pytest.approx(ended["ended_unix_s"] - ended["started_unix_s"])
    assert main([str(SLOTS), "--output", str(tmp_path / "disclosure.md")]) == 0
    with zipfile.ZipFile(SLOTS) as archive:
        archive.extractall(tmp_path, [name for name in archive.namelist() if f"/{cell}/" in name])
    estimate = tmp_path / "estimate.md"
    assert main([str(tmp_path), "--tokens", "1e12", "--output", str(estimate)]) == 0
    assert estimate.exists()
    assert not estimate.with_suffix(".spdx.json").exists()
    assert main([str(SLOTS), "--tokens", "1e12", "--output", str(estimate)]) == 1
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    assert main([str(nothing), "--output", str(tmp_path / "nothing.md")]) == 1
    capsys.readouterr()
