"""The program as the job starts it: its files, its lines, and how it dies."""

import contextlib
import csv
import gzip
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from tests import programs
from tests.programs import well
from tests.training.cells import GPT, LLAMA, MIXTRAL, cell
from workflow_lib.analysis.traces.of_run import analyse_run
from workflow_lib.launch.outcome import classify
from workflow_lib.records.cell import Data
from workflow_lib.records.contract import STEPS, RankRecord
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import ErrorRecord, JobState, Outcome
from workflow_lib.records.paths import RunPaths, node_name
from workflow_lib.records.training import precisions_of
from workflow_lib.records.whole_files import write_json
from workflow_lib.trainers.native.tokenize import byte_tokenizer, tokenize

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def command(ranks, path, *options):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    launcher = launcher if ranks > 1 else []
    return [sys.executable, *launcher, "-m", "workflow_lib.trainers.native", str(path), *options]


def run(directory, one, ranks=1, options=()):
    """Train a cell in a directory; return the finished process."""
    paths = RunPaths(directory)
    write_json(paths.cell, one)
    return programs.run(command(ranks, paths.cell, *map(str, options)))


def rows(paths, rank):
    with paths.rank_steps(rank).open() as stream:
        return list(csv.DictReader(stream))


def licence(directory):
    """The option for the tokens of a text that nobody edits, made in a directory."""
    tokenize(directory, [str(ROOT / "LICENSE")], byte_tokenizer())
    return ["--tokens", directory / "tokens.json"]


def test_a_run_on_real_text_learns_and_writes_all_that_analysis_reads(tmp_path):
    # How fast a text is learned depends on it.
    options = licence(tmp_path)
    one = cell(GPT, Degrees(pp=2), warmup_steps=2, measured_steps=10, learning_rate=1e-2)
    one = replace(one, data=Data("formulas", "text"))
    paths = RunPaths(tmp_path / "run")

    before = time.time()
    ended = run(paths.directory, one, 2, options)
    after = time.time()

    assert ended.returncode == 0, ended.stderr
    stated = json.loads((tmp_path / "tokens.json").read_text())["sha256"]
    lines = ended.stdout.splitlines()
    assert len(lines) == 12
    assert lines[2].startswith("step 3/12 (measured) loss ")
    assert lines[2].endswith(" tokens/s")
    for rank in (0, 1):
        record = read_record(paths.rank(rank), RankRecord)
        assert (record.rank, record.pp_rank, record.gpu) == (rank, rank, None)
        assert record.precisions == precisions_of(one.training, one.degrees)
        assert record.tokens_sha256 == (stated if rank == 0 else None), "a node compares once"
        steps = rows(paths, rank)
        assert list(steps[0]) == [column.name for column in STEPS]
        assert [row["phase"] for row in steps] == ["warmup"] * 2 + ["measured"] * 10
        assert [int(row["tokens"]) for row in steps] == [4 * 64] * 12
        losses = [float(row["loss"]) for row in steps]
        assert losses[0] == pytest.approx(5.95, abs=0.2)  # ln 384: nothing is known yet
        assert losses[-1] < 4.0
        times = [float(row[name]) for row in steps for name in ("started_unix_s", "ended_unix_s")]
        assert times == sorted(times)
        assert before < times[0]
        assert times[-1] < after
        assert all(
            int(row["memory_peak_bytes"]) >= int(row["memory_allocated_bytes"]) > 0 for row in steps
        )
    assert not paths.errors.exists()


def test_a_profiled_run_leaves_a_trace_a_rank_and_trains_no_more_than_it_must(tmp_path):
    one = cell(MIXTRAL, Degrees(dp=2, ep=2), warmup_steps=2, measured_steps=50)
    paths = RunPaths(tmp_path / "run0")

    well(run(paths.directory, one, 2, ["--profile", "2"]))
    for rank in (0, 1):
        assert [row["phase"] for row in rows(paths, rank)] == ["warmup"] * 2 + ["measured"] * 2
        with gzip.open(paths.trace(rank)) as stream:
            groups = json.load(stream)["distributedInfo"]["pg_config"]
        described = {(each["pg_desc"], tuple(each["ranks"])) for each in groups}
        assert {("dp", (0, 1)), ("ep", (0, 1)), ("tp", (rank,)), ("pp", (rank,))} <= described
    found = analyse_run(paths.directory)
    assert dict(found.notes) == {0: (), 1: ()}
    assert found.ranks["steps"].to_list() == [2, 2]
    assert not any(found.ranks["on_gpu"])
    assert {"gemm", "attention", "optimiser", "all_reduce"} <= set(found.kernels["class"])
    # In each of two steps, two micro-batches and four layers: how many rows there are for whom, the
    # rows and what became of them; and backward these two.
    to_all = found.kernels.filter(pl.col("class") == "all_to_all")
    assert to_all.select("rank", "kernels", "group", "fabric").rows() == [
        (rank, 2 * 2 * 4 * (3 + 2), "EP", "intra_node") for rank in (0, 1)
    ]
    assert min(found.ranks["matched_collectives"]) >= 80


def test_a_loss_that_overflows_ends_the_run_and_names_the_step(tmp_path):
    one = cell(LLAMA, zero_stage=0, learning_rate=1e20)
    ended = run(tmp_path, one, options=["--profile", "4"])

    assert ended.returncode == 1
    record = read_record(RunPaths(tmp_path).rank_error(0), ErrorRecord)
    assert record.outcome == Outcome.NONFINITE_LOSS
    *_, last = rows(RunPaths(tmp_path), 0)
    assert record.message.endswith(f"{last['step']} is nan")
    assert last["loss"] == ""
    # Kineto's lines, and those of torch where the machine's own name does not resolve.
    others = re.compile(r"USDT:|.*\[c10d\]")
    said = [line for line in ended.stderr.splitlines() if not others.match(line)]
    assert len(said) == 1
    # Of steps that were cut short there is no trace.
    assert not RunPaths(tmp_path).traces.exists()


def test_a_model_that_memory_cannot_hold_is_out_of_memory(tmp_path):
    ended = run(tmp_path, cell(replace(LLAMA, ffn_hidden_size=1 << 30)))

    record = read_record(RunPaths(tmp_path).rank_error(0), ErrorRecord)
    assert record.outcome == Outcome.OUT_OF_MEMORY
    assert record.phase == "build"
    assert "in GB: weights " in record.message
    assert ended.returncode == 1


def test_tokens_that_the_model_does_not_know_end_the_run_before_it_trains(tmp_path):
    one = replace(cell(replace(LLAMA, vocabulary_size=100)), data=Data("licence", "text"))

    ended = run(tmp_path / "run", one, options=licence(tmp_path))

    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "257 ids" in line
    assert not RunPaths(tmp_path / "run").steps.exists()


def test_tokens_that_were_exchanged_end_the_run_before_it_trains(tmp_path):
    options = licence(tmp_path)
    array = tmp_path / "tokens.bin"
    array.write_bytes(bytes(array.stat().st_size))
    one = replace(cell(GPT, Degrees(dp=2)), data=Data("licence", "text"))

    ended = run(tmp_path / "run", one, 2, options)

    assert ended.returncode == 1
    record = read_record(RunPaths(tmp_path / "run").rank_error(0), ErrorRecord)
    assert (record.outcome, record.phase) == (Outcome.ERROR, "setup")
    assert record.message.startswith(f"{array}: ")
    assert not RunPaths(tmp_path / "run").steps.exists()


def test_a_cell_that_no_backend_runs_is_refused_with_the_reason(tmp_path):
    ended = run(tmp_path, cell(LLAMA, Degrees(pp=2), zero_stage=3))

    assert ended.returncode == 1
    assert "ZeRO-0 and 1" in ended.stderr


def test_a_missing_cell_is_one_line_and_leaves_nothing(tmp_path):
    ended = subprocess.run(
        command(1, tmp_path / "cell.json"), cwd=ROOT, capture_output=True, text=True
    )

    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith("training: ")
    assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def two_ranks_at_work(paths, **environment):
    """Two ranks that train for long, once they have begun: their watchers, and what these watch."""
    write_json(paths.cell, cell(LLAMA, Degrees(dp=2), measured_steps=100_000))
    paths.script.write_text("")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    watched = [sys.executable, "-m", "workflow_lib.launch.job.rank", str(paths.directory)]
    ranks = [
        subprocess.Popen(
            [*watched, *command(1, paths.cell)[1:]],
            cwd=ROOT,
            env=os.environ
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            | environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for rank in (0, 1)
    ]
    try:
        while not paths.rank_steps(1).exists() or len(rows(paths, 1)) < 3:
            assert ranks[1].poll() is None
            time.sleep(0.1)
        yield ranks, [read_record(paths.rank(rank), RankRecord).pid for rank in (0, 1)]
    finally:
        for process in ranks:
            process.kill()
            process.wait()


@pytest.mark.long
def test_a_rank_that_hangs_ends_the_other_and_is_named(tmp_path):
    paths = RunPaths(tmp_path)
    with two_ranks_at_work(paths, TRIPTYCH_COMMUNICATION_TIMEOUT_S="4") as (ranks, processes):
        os.kill(processes[1], signal.SIGSTOP)
        assert ranks[0].wait() == 1

    found = classify(paths, JobState("FAILED"))
    assert found.outcome is Outcome.COMMUNICATION_TIMEOUT
    assert found.cause.startswith(f"rank 1 on {node_name()} did ")
    assert re.search(r"it waited in \w+", found.cause)


def test_a_rank_that_runs_out_of_memory_ends_the_other_and_is_named(tmp_path):
    paths = RunPaths(tmp_path)
    # Every tensor is mapped by itself, so that the first one after the limit cannot be had.
    with two_ranks_at_work(paths, MALLOC_MMAP_THRESHOLD_="4096") as (ranks, processes):
        resource.prlimit(processes[1], resource.RLIMIT_AS, (1, resource.RLIM_INFINITY))
        assert ranks[1].wait() == 1
        assert ranks[0].wait() == 1

    found = classify(paths, JobState("FAILED"))
    assert found.outcome is Outcome.OUT_OF_MEMORY
    assert re.match(rf"rank 1 on {node_name()}, in (data|forward_backward): ", found.cause)
    assert "in GB: weights " in found.cause


def test_a_rank_that_is_killed_takes_the_other_with_it_and_all_steps_stay_readable(tmp_path):
    paths = RunPaths(tmp_path)
    with two_ranks_at_work(paths) as (ranks, processes):
        os.kill(processes[1], signal.SIGKILL)
        assert ranks[1].wait() == 128 + signal.SIGKILL
        assert ranks[0].wait() == 1

    for rank in (0, 1):
        steps = rows(paths, rank)
        assert [int(row["step"]) for row in steps] == list(range(len(steps)))
        assert all(float(row["loss"]) > 0 for row in steps)
    # The survivor knows no cause; the one who was killed leaves no error, but its watcher does.
    survivor = read_record(paths.rank_error(0), ErrorRecord)
    assert survivor.outcome == Outcome.COMMUNICATION_TIMEOUT
    assert not paths.rank_error(1).exists()
    found = classify(paths, JobState("FAILED"))
    assert found.outcome is Outcome.ERROR
    assert re.match(rf"rank 1 on {node_name()} .*SIGKILL", found.cause)
