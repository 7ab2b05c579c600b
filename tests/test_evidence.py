"""The evidence is whole, and this checkout makes of it what it says: tables and figures byte for
byte, the pages of docs/results, and the README's first finding."""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
import shutil
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from docs import digests, evidence
from research.pages import findings, provenance, sweeps, verdicts
from tests.texts import edit
from workflow_lib import audit
from workflow_lib.cells import expand_study
from workflow_lib.claims import __main__ as claims_command
from workflow_lib.feasibility import ASSUMED_AT_MOST
from workflow_lib.projection.collecting import collect
from workflow_lib.projection.own_runs import read_own
from workflow_lib.records.reasons import SENTENCES
from workflow_lib.records.tables import CELLS, GPUS, PLAN, RUNS
from workflow_lib.study import load_study
from workflow_lib.table_files import read_table, write_table

ROOT = Path(__file__).parents[1]
#: columns that name a contrast for readers
NAMED = re.compile("(beside_)?(model|shared|label_[ab]|platform_[ab])")
SWEEPS = ("evidence-llama3-8b-x2", "evidence-overlap-x2")
ARCHIVES = sorted(path.stem for path in (ROOT / "evidence").glob("*.zip"))

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every archive, checked and made anew, once: by TRIPTYCH_REBUILT if that names where."""
    if made := os.environ.get("TRIPTYCH_REBUILT"):
        return Path(made).absolute()
    into = tmp_path_factory.mktemp("rebuilt")
    evidence.rebuild_all(into)
    return into


def test_tables_and_figures_are_those_of_the_digests(rebuilt):
    kept = digests.read(evidence.DIGESTS)
    assert digests.differences(kept, digests.digests(rebuilt)) == [], (
        "if it is meant: python -m docs.evidence --write"
    )
    of_columns = {key: set(archives) for key, archives in kept.items()}
    for table, columns in (("runs", RUNS), ("cells", CELLS), ("gpus", GPUS), ("plan", PLAN)):
        for column in columns:
            if column.name not in ("missing_reasons", "missing_codes"):
                assert of_columns[f"{table}.parquet", column.name] == {*ARCHIVES}


def test_a_value_that_changes_by_its_last_digit_is_noticed(rebuilt, tmp_path):
    sweep = SWEEPS[1]
    shutil.copytree(rebuilt / sweep, tmp_path / "made" / sweep)
    kept = digests.digests(tmp_path / "made")
    file = tmp_path / "made" / sweep / "results" / "sweeps" / sweep / "runs.parquet"
    runs = read_table(file, RUNS)
    drift = pl.col("step_time_drift")
    assert runs.select((drift == drift.round(6)).all()).item()
    write_table(runs, file)
    assert digests.differences(kept, digests.digests(tmp_path / "made")) == []
    write_table(runs.with_columns(drift + 1e-6), file)
    changed = digests.differences(kept, digests.digests(tmp_path / "made"))
    assert changed == [f"changed: runs.parquet, column step_time_drift of {sweep}"]


def test_pages_say_what_the_tables_hold(rebuilt, tmp_path, monkeypatch):
    assert evidence.stale(rebuilt) == [], "make them anew: python -m docs.evidence --write"
    sentence = findings.headline(rebuilt)
    assert sentence in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    monkeypatch.setattr(evidence, "CHECKOUT", tmp_path)
    monkeypatch.setattr(findings, "DIRECTORY", tmp_path)
    monkeypatch.setattr(evidence, "OWN_RUNS", tmp_path / "own_runs.csv")
    monkeypatch.setattr(evidence, "OWN_PARTS", tmp_path / "own_parts.jsonl")
    for path, text in evidence.fitted_to(rebuilt).items():
        path.write_text(text, encoding="utf-8")
    # README.md has its findings between two lines of its own, and the rest by hand.
    monkeypatch.setattr(verdicts, "README", tmp_path / "README.md")
    shutil.copy(ROOT / "README.md", tmp_path)
    for path, text in evidence.pages(rebuilt).items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert evidence.stale(rebuilt) == []
    (tmp_path / findings.NAME).write_text("10,120 tokens/s, typed by hand", encoding="utf-8")
    (tmp_path / "old.md").write_text("<!-- Made by … --> of another sweep", encoding="utf-8")
    (tmp_path / "written.md").write_text("by hand, without an archive", encoding="utf-8")
    assert evidence.stale(rebuilt) == [findings.NAME, "old.md"]
    edit(verdicts.README, " more than the next", " less than the next")
    assert "README.md" in evidence.stale(rebuilt)


def test_the_page_of_provenance_has_every_completed_run_once(rebuilt):
    counted: dict[str, int] = {}
    for line in provenance.page(rebuilt).splitlines():
        if line.startswith("| `"):
            sweep, _, _, _, _, measured, profiled, _ = line.strip("| ").split(" | ")
            counted[sweep] = counted.get(sweep, 0) + int(measured) + int(profiled)
    there = {
        f"`{archive.name}`": len(list(archive.glob("results/cells/*/*/*/run*/outcome.json")))
        for archive in rebuilt.iterdir()
    }
    assert counted == there
    assert counted["`evidence-twin-x2`"] == 20


def test_projections_are_fitted_to_the_runs_of_all_archives(rebuilt):
    assert evidence.own_runs(rebuilt) == evidence.OWN_RUNS.read_text("utf-8")
    runs = {run.cell.rpartition("_")[2]: run for run in read_own()}
    assert {run.gpu for run in runs.values()} == {"H100", "H200"}
    # Two sweeps hold the same three runs of this cell.
    assert (runs["1be45efa"].runs, len(runs["1be45efa"].sweep.split())) == (3, 2)
    assert not any("emulated" in run.platform for run in runs.values())


def test_no_step_took_longer_than_a_time_limit_by_an_assumed_one_allows_for(rebuilt):
    times = []
    for sweep in sorted(rebuilt.iterdir()):
        tables = sweep / "results" / "sweeps" / sweep.name
        plan = read_table(tables / "plan.parquet", PLAN).select(
            "cell", "step_time_source", assumed_s="step_time_s"
        )
        runs = read_table(tables / "runs.parquet", RUNS).join(plan, on="cell")
        assumed = runs.filter(pl.col("step_time_source").str.starts_with("assumed"))
        times.extend((assumed["step_time_s"] / assumed["assumed_s"]).drop_nulls())
    # Decoding, which waits for the host, is assumed to.
    assert 1.5 < max(times) < 2.0 < ASSUMED_AT_MOST


def test_emulated_nodes_are_known_also_by_runs_from_before_platforms_stated_it(rebuilt):
    sweep = "evidence-emulated-nodes"
    directory = rebuilt / sweep / "results" / "sweeps" / sweep
    guessed = "NCCL was kept from the links between GPUs (NCCL_P2P_DISABLE), as on emulated nodes"
    stated = (
        "its two nodes are slurmds of one host, and NCCL joins their GPUs by TCP sockets of that "
        "host alone"
    )
    runs = read_table(directory / "runs.parquet", RUNS)["emulated"].to_list()
    assert sorted(runs) == [guessed] * 4 + [stated] * 2
    for name, columns in (("cells", CELLS), ("plan", PLAN)):
        assert set(read_table(directory / f"{name}.parquet", columns)["emulated"]) == {stated}
    page = sweeps.of_sweep([directory])[findings.DIRECTORY / f"{sweep}.md"]
    assert f"emulated: {stated}." in page
    assert page.count("EMULATED ") == 2
    claims = (findings.DIRECTORY / verdicts.NAME).read_text("utf-8")
    assert "emulated-nodes (emulated), 3 runs" in claims
    assert collect([directory]) == []


def test_an_archived_sweep_without_a_page_of_its_own_gets_one(rebuilt):
    directory = rebuilt / SWEEPS[1] / "results" / "sweeps" / SWEEPS[1]
    made = sweeps.of_sweep([directory])
    page, *images = made
    assert page == findings.DIRECTORY / f"{SWEEPS[1]}.md"
    assert all(image.name in made[page] for image in images)
    text = made[page]
    assert text.splitlines()[2].startswith("# What does overlap")
    # The same contrasts as those of the page by hand: of overlap, since all else differs in more.
    by_hand = findings.page(rebuilt)
    contrasts = [
        line for line in text.splitlines() if line.startswith("| `tp2 sp overlap` | `tp2 sp` |")
    ]
    assert len(contrasts) == 1
    assert contrasts[0] in by_hand
    assert "| `pp2` | 9,003 (9,002–9,186) |" in text
    assert text.endswith("every run completed.\n")


def test_a_page_names_the_profiled_runs_that_are_missing(rebuilt):
    sweep = "evidence-experts-x2"
    directory = rebuilt / sweep / "results" / "sweeps" / sweep
    text = sweeps.of_sweep([directory])[findings.DIRECTORY / f"{sweep}.md"]
    missing = [
        f"- the profiled run of `{cell}` (`{sweep}`): not run, no job of it has ended."
        for cell in ("dp2-ep2 mb1 overlap", "dp2-ep2 mb2", "pp2 mb1", "tp2 mb1 sp")
    ]
    assert text.partition("## What is missing")[2].strip().splitlines() == missing
    report = (directory / "report.html").read_text(encoding="utf-8")
    assert "<li>4 profiled runs of 4 " in report
    assert report.count('<td>profiled</td><td><span class="fate">not run</span></td>') == 4
    assert "Every run of" not in report


@pytest.mark.parametrize("sweep", ARCHIVES)
def test_throughput_and_energy_are_what_raw_files_say(rebuilt, sweep):
    results = rebuilt / sweep / "results"
    runs = read_table(results / "sweeps" / sweep / "runs.parquet", RUNS).to_dicts()
    done = [run for run in runs if run["outcome"] == "completed"]
    assert [run["outcome"] for run in runs if run not in done] == []
    for run in done:
        directory = results / "cells" / run["cell"] / f"run{run['run']}"
        ranks = [rows(path) for path in sorted(directory.glob("steps/rank*.csv"))]
        measured = [row for rank in ranks for row in rank if row["phase"] == "measured"]
        start = min(float(row["started_unix_s"]) for row in measured)
        end = max(float(row["ended_unix_s"]) for row in measured)
        steps = len({row["step"] for row in measured})
        generated = run["generated_tokens"] if run["workload"] == "inference" else None
        tokens = steps * run["global_batch_size"] * run["sequence_length"]
        if generated is None:
            # Clocks of two nodes are corrected, here by microseconds.
            speed = pytest.approx(tokens / (end - start), rel=1e-6 if run["nodes"] > 1 else 1e-9)
            assert run["tokens_per_s"] == speed
        if run["interleaved_rates_hz"] is not None:
            # The power of blocks without sampling is not known, so neither is the run's energy.
            assert run["energy_j"] is None
            continue
        integral = energy = late = 0.0
        for power, counted in by_gpu(directory / "telemetry"):
            of_gpu = trapezoids(power, start, end)
            integral += of_gpu
            # The driver's own counter of energy, read every 20 s: a short run has one reading. It
            # rises every 0.1 s, so each reading may be late by that.
            within = [reading for reading in counted if start <= reading[0] <= end]
            share = 1.0
            if len(within) > 1:
                (first, before), *_, (last, after) = within
                between = trapezoids(power, first, last)
                share = (after - before) / between
                assert share == pytest.approx(1.0, abs=0.01 + 0.2 / (last - first))
                late += of_gpu * 0.2 / (last - first)
            else:
                late += of_gpu * 0.01
            energy += of_gpu * share
        assert run["energy_integral_j"] == pytest.approx(integral, rel=0.002)
        # By the counter, whichever of its readings are taken.
        assert run["energy_j"] == pytest.approx(energy, abs=late)


def test_every_null_has_a_reason_with_a_code(rebuilt):
    codes = set()
    for file in rebuilt.glob("*/results/sweeps/*/*.parquet"):
        frame = pl.read_parquet(file)
        if "missing_codes" in frame.columns:
            for text in frame["missing_codes"].drop_nulls():
                codes |= set(json.loads(text).values())
    assert codes <= SENTENCES.keys() - {"unclassified", "no_reason"}
    assert len(codes) > 25


def test_the_auditor_agrees_with_every_completed_run(rebuilt, capsys):
    assert audit.main([str(rebuilt / sweep) for sweep in ARCHIVES]) == 0
    audited, differ = re.findall(r"\d+", capsys.readouterr().out.splitlines()[-1])[:2]
    assert int(audited) > 190
    assert differ == "0"


def test_the_docs_say_how_far_counter_and_integral_are_apart(rebuilt):
    found, every = {}, set()
    for sweep in ARCHIVES:
        tables = rebuilt / sweep / "results" / "sweeps" / sweep
        runs = read_table(tables / "runs.parquet", RUNS).to_dicts()
        began = {(run["cell"], run["run"]): run["started_unix_s"] for run in runs}
        for row in read_table(tables / "gpus.parquet", GPUS).to_dicts():
            # A run that is in two archives counts once.
            key = row["gpu_uuid"], began[row["cell"], row["run"]]
            every.add(key)
            if row["energy_difference"] is not None:
                found[key] = abs(row["energy_difference"])
    median, most_of_them = np.percentile(list(found.values()), [50, 95])
    text = (ROOT / "docs" / "results" / "readings.md").read_text(encoding="utf-8")
    numbers = (
        *(f"Of {len(every)} GPU-runs, {len(found)} of", f"median {100 * median:.3f} %"),
        *(f"95th percentile {100 * most_of_them:.3f} %", f"{100 * max(found.values()):.2f} %."),
    )
    assert re.search(".*".join(map(re.escape, numbers)), text)


def by_gpu(telemetry: Path) -> list[tuple[list[tuple[float, float]], list[tuple[float, float]]]]:
    """The driver's samples of power, and the readings of its counter, of each GPU of each node."""
    found = []
    for path in sorted(telemetry.glob("*-power.csv")):
        counters = path.with_name(path.name.replace("-power", "-counters"))
        power = series(path, "driver_time_us", "power_mw", 1e-6, 1e-3)
        counted = series(counters, "unix_time_s", "energy_j")
        found += [(power[gpu], counted[gpu]) for gpu in sorted(power)]
    return found


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def series(
    path: Path, time: str, value: str, seconds: float = 1.0, unit: float = 1.0
) -> dict[str, list[tuple[float, float]]]:
    """Of each GPU the moments and values of a column where it has any."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows(path):
        if row[value]:
            point = float(row[time]) * seconds, float(row[value]) * unit
            found.setdefault(row["gpu"], []).append(point)
    return {gpu: sorted(points) for gpu, points in found.items()}


def trapezoids(points: list[tuple[float, float]], start: float, end: float) -> float:
    """The area from start to end, straight lines between points."""
    total = 0.0
    for (t, v), (later, w) in itertools.pairwise(points):
        low, high = max(t, start), min(later, end)
        if low < high:
            slope = (w - v) / (later - t)
            total += (high - low) * (v + slope * ((low + high) / 2 - t))
    return total


@pytest.mark.parametrize("sweep", ARCHIVES)
def test_an_archive_is_small_and_names_its_licence(sweep):
    archive = ROOT / "evidence" / f"{sweep}.zip"
    assert archive.stat().st_size < 24e6
    with zipfile.ZipFile(archive) as source:
        crate = source.read(f"{sweep}/data/ro-crate-metadata.json").decode()
    assert "CC-BY-4.0" in crate


def test_all_archives_together_are_small():
    assert sum(path.stat().st_size for path in (ROOT / "evidence").glob("*.zip")) < 100e6


def test_the_page_for_evaluators_expects_what_commands_print(rebuilt, tmp_path, capsys):
    page = (ROOT / "docs/artifact.md").read_text("utf-8")
    arguments = [*map(str, findings.sweeps_of(rebuilt)), "--output", str(tmp_path)]
    assert claims_command.main(arguments) == 0
    assert f'"{capsys.readouterr().out.splitlines()[-2]}"' in page
    views = expand_study(load_study(ROOT / "config")).values()
    cells = {each.cell.id: each for view in views if view.platform == "h200" for each in view.cells}
    can_run = sum(each.feasible for each in cells.values())
    assert f"{can_run} of {len(cells)} can run" in page


def test_contrasts_of_a_test_have_names_of_their_own(rebuilt):
    names = Counter(
        (row["claim"], row["test"], *(row[name] for name in row if NAMED.fullmatch(name)))
        for row in verdicts.rows_of(rebuilt)
        if row["cell_b"]
    )
    assert {each: count for each, count in names.items() if count > 1} == {}
