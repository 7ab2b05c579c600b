"""What a job script does on its node, and what it leaves however it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.launch import runs, scripts
from tests.launch.jobs import NEVER_READY, SAMPLES, TRAINS_FOR_LONG, UNTIL_STOPPED, Job
from workflow_lib.launch import outcome
from workflow_lib.launch.job import node
from workflow_lib.launch.processes import is_running
from workflow_lib.launch.schedulers.local import Local
from workflow_lib.records.files import read_json, read_record
from workflow_lib.records.nodes import CoolDown, TelemetryStart
from workflow_lib.records.outcomes import EndedRecord, JobRecord, JobState, Outcome
from workflow_lib.records.paths import RunPaths, node_name
from workflow_lib.records.telemetry_columns import GPU_SAMPLES
from workflow_lib.records.whole_files import write_json
from workflow_lib.telemetry.files import leave_mark

# ------------------------------------------------------------------------------ its commands


#: a job of the workflow
WORKFLOWS = JobRecord("slurm", "7", submitted_unix_s=1.0, submitted_by="the workflow")


def test_a_job_that_was_submitted_by_the_workflow_leaves_its_record_alone(paths):
    write_json(paths.job, WORKFLOWS)
    node.begin(paths, "7", "slurm", b"script")
    assert read_record(paths.job, JobRecord) == WORKFLOWS
    assert not paths.attempts.exists()
    environment = read_json(paths.environment)
    assert environment["job_id"] == "7"
    # printf script | sha256sum
    digest = "21a0270b7f66a1e4c25933f13a1e5a1bbb4757578072930c8189131f9c6aaae1"
    assert environment["script_sha256"] == digest


def test_a_job_that_was_submitted_by_hand_writes_its_own_record(paths):
    node.begin(paths, "12", "slurm", b"")
    job = read_record(paths.job, JobRecord)
    assert (job.scheduler, job.job_id, job.submitted_by) == ("slurm", "12", "the job itself")
    assert job.submitted_unix_s == pytest.approx(time.time(), abs=60)


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_requeued_job_keeps_its_record_and_sets_its_first_start_aside(paths, has_ended):
    write_json(paths.job, WORKFLOWS)
    node.begin(paths, "7", "slurm", b"")
    if has_ended:
        runs.end(paths, "interrupted", training_exit=143)
    else:  # its node went away while it was set aside
        paths.environment.unlink()
    (paths.telemetry / "node1.csv").write_text("first start\n")
    node.begin(paths, "7", "slurm", b"")
    assert read_record(paths.job, JobRecord) == WORKFLOWS
    assert not paths.ended.exists()
    assert paths.environment.exists()
    kept = RunPaths(paths.attempts / "1")
    assert kept.ended.exists() == has_ended
    assert (kept.telemetry / "node1.csv").read_text() == "first start\n"
    assert all(directory.is_dir() for directory in (paths.logs, paths.steps, paths.telemetry))
    assert list(paths.telemetry.iterdir()) == []


def test_a_job_by_hand_sets_another_jobs_failed_run_aside(paths):
    write_json(paths.job, WORKFLOWS)
    paths.submission.write_text("{}")
    runs.end(paths, "training", training_exit=1, job_id="7")
    node.begin(paths, "12", "slurm", b"")
    assert read_record(paths.job, JobRecord).job_id == "12"
    kept = RunPaths(paths.attempts / "1")
    assert read_record(kept.ended, EndedRecord).job_id == "7"
    assert read_record(kept.job, JobRecord).job_id == "7"
    # Whoever looked for the other job by its name would not find this one.
    assert not paths.submission.exists()


@pytest.mark.parametrize(
    ("job", "has", "named"),
    [
        ("7", "a result", "--again"),
        ("12", "a result", "--again"),
        ("7", "an outcome", "--again"),
        ("12", "an outcome", "--again"),
        ("12", "a job", "job 7"),
    ],
)
def test_a_job_leaves_a_run_alone_that_has_a_result_or_another_job(paths, job, has, named):
    write_json(paths.job, WORKFLOWS)
    if has != "a job":
        runs.complete(paths, "7")
    if has == "an outcome":
        paths.outcome.write_text("{}")
    before = sorted(paths.directory.rglob("*"))
    with pytest.raises(node.TakenError, match=named):
        node.begin(paths, job, "slurm", b"")
    assert sorted(paths.directory.rglob("*")) == before


def test_a_result_that_is_to_be_run_again_is_set_aside(paths):
    write_json(paths.job, WORKFLOWS)
    runs.complete(paths, "7")
    runs.failure(paths, "completed")  # what `status --again` makes of a result
    node.begin(paths, "12", "slurm", b"")
    assert read_record(paths.job, JobRecord).job_id == "12"
    assert RunPaths(paths.attempts / "1").rank_steps(0).exists()


def test_of_two_jobs_that_begin_at_once_one_has_the_run(paths, monkeypatch):
    """Each finds no job, then both want to own the run."""
    monkeypatch.setattr(node, "read_if_there", lambda path, kind: None)
    node.begin(paths, "7", "slurm", b"")
    (paths.environment).unlink()
    with pytest.raises(node.TakenError, match="job 7"):
        node.begin(paths, "12", "slurm", b"")
    assert read_record(paths.job, JobRecord).job_id == "7"


def test_ranks_that_could_not_find_each_other_are_refused_before_they_wait(paths, monkeypatch):
    def unknown(host, port):
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(SystemExit, match="address for localhost"):
        node.begin(paths, "7", "local", b"")
    node.begin(paths, "7", "slurm", b"")  # there srun starts ranks, which reach the first node


#: names of variables that somebody keeps a secret in, which look like settings or do not
PLANTED = """
    MY_TOKEN AWS_SECRET_ACCESS_KEY XNCCL_DEBUG NCCL_debug HOME_NCCL_KEY HF_TOKEN WANDB_API_KEY
    NCCL_KEY NCCL_MY_PSK NCCL_COMM_ID NCCL_RAS_ADDR NCCL_CONF_FILE NCCL_SOCKET_MAGIC
    NCCL_DEBUG_FILE NCCL_HOSTID NCCL_ENV_PLUGIN NCCL_LOGIN NCCL_TUNER_CONFIG_FILE NCCL_TOPO_FILE
    NCCL_NET_PLUGIN RCCL_KEY RCCL_USER RCCL_LINK TORCH_LINK TORCH_HOME TORCH_KEY TORCH_HUB_URL
    TORCH_TRACE TORCH_LOGS_OUT TORCH_COMPILE_STICKY_PGO_KEY TORCH_WORKER_SERVER_SOCKET TORCH_PIN
    TORCH_CACHE_SAS PYTORCH_UPLOAD PYTORCH_KEY SLURM_JWT SLURM_JOB_COMMENT CUDA_KEY OMP_KEY
    HIP_LICENSE
"""


def test_the_environment_holds_settings_and_no_secrets(paths, monkeypatch):
    assert len(PLANTED.split()) == 40
    for name in PLANTED.split():
        monkeypatch.setenv(name, "hunter2-hunter2")
    # A known setting may hold credentials, too.
    monkeypatch.setenv("NCCL_IB_HCA", "ada:hunter2-hunter2@mlx5_0")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "https://host/if?sig=hunter2-hunter2")
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    node.begin(paths, "7", "local", b"")
    assert "hunter2" not in paths.environment.read_text()
    environment = read_json(paths.environment)
    variables = environment["environment_variables"]
    assert variables["NCCL_P2P_DISABLE"] == "1"
    assert variables["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert {"NCCL_KEY", "RCCL_LINK", "TORCH_PIN"} <= {*environment["other_environment_variables"]}
    assert environment["python"].startswith("3.")
    assert environment["cpus"] == os.cpu_count()


def test_what_cannot_be_told_is_null(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(node, "_PACKAGES", ("surely-not-installed",))
    environment = node.environment()
    assert environment["commit"] is None
    assert environment["uncommitted_changes"] is None
    assert environment["nvidia_driver"] is None
    assert environment["packages"] == {"surely-not-installed": None}


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_waiting_for_telemetry_ends_when_every_node_is_ready(paths, sleeper):
    paths.telemetry.mkdir(exist_ok=True)
    threading.Timer(0.2, paths.telemetry_ready("node1").touch).start()
    began = time.monotonic()
    node.wait_for_telemetry(paths, sleeper.pid)
    assert time.monotonic() - began > 0.15


@pytest.mark.parametrize("step", ["telemetry", "limits"])
def test_waiting_ends_when_one_of_several_nodes_fails(paths, sleeper, step):
    wait, failed = {
        "telemetry": (node.wait_for_telemetry, paths.telemetry_failed("node2")),
        "limits": (node.wait_for_limits, paths.limits_failed("node2")),
    }[step]
    leave_mark(failed)
    with pytest.raises(SystemExit, match="failed on node2"):
        wait(paths, sleeper.pid)


@pytest.mark.parametrize("end", ["samplers", "time"])
def test_waiting_ends_with_the_samplers_or_after_a_time(paths, sleeper, monkeypatch, end):
    if end == "time":
        monkeypatch.setattr(node, "TELEMETRY_TIMEOUT_S", 0.2)
    else:
        threading.Timer(0.2, sleeper.kill).start()
    with pytest.raises(SystemExit, match="0 of 1" if end == "time" else "telemetry.log"):
        node.wait_for_telemetry(paths, sleeper.pid)


def test_the_end_record_holds_codes_and_null_where_a_step_never_started(paths):
    node.begin(paths, "7", "local", b"")
    node.end(paths, "7", "training", "137", "0")
    ended = read_record(paths.ended, EndedRecord)
    assert (ended.training_exit_code, ended.telemetry_exit_code) == (137, 0)
    assert ended.failed_stage == "training"
    assert ended.nodes == (node_name(),)
    assert ended.script_sha256 == read_json(paths.environment)["script_sha256"]
    assert ended.started_unix_s <= ended.ended_unix_s

    runs.train(paths)
    node.end(paths, "7", "complete", "", "")
    ended = read_record(paths.ended, EndedRecord)
    assert (ended.training_exit_code, ended.telemetry_exit_code) == (None, None)
    assert ended.failed_stage is None
    # That of its ranks.
    assert ended.nodes == (runs.NODE,)


def test_a_rank_that_did_not_finish_was_not_trained_to_the_end_whatever_srun_said(paths):
    runs.train(paths)
    steps = paths.rank_steps(1).read_text().splitlines(keepends=True)
    paths.rank_steps(1).write_text("".join(steps[:-1]))
    node.end(paths, "7", "complete", "0", "0")
    assert read_record(paths.ended, EndedRecord).failed_stage == "training"


def test_a_rank_of_a_profiled_run_has_finished_with_its_trace(paths):
    profiled = RunPaths(paths.directory.with_name("run0"))
    paths.directory.rename(profiled.directory)
    runs.train(profiled)
    profiled.traces.mkdir()
    for rank, stage in ((0, "training"), (1, None)):
        profiled.trace(rank).touch()
        node.end(profiled, "7", "complete", "0", "0")
        assert read_record(profiled.ended, EndedRecord).failed_stage == stage


@pytest.mark.parametrize("there", [True, False])
def test_the_end_record_names_every_node(paths, tmp_path, monkeypatch, there):
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    if there:  # in a site's container it is not
        scontrol.write_text('#!/bin/sh\n[ "$*" = "show hostnames" ] && printf "gpu1\\ngpu2\\n"\n')
        scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(scontrol.parent), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[1-2]")
    monkeypatch.setenv("SLURMD_NODENAME", "gpu1")
    if not there:
        monkeypatch.setenv("PATH", str(scontrol.parent))
    node.end(paths, "7", "telemetry", "", "1")
    expected = ("gpu1", "gpu2") if there else ("gpu1",)
    assert read_record(paths.ended, EndedRecord).nodes == expected


# ---------------------------------------------------------------------- the script, however it ends


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def begin(telemetry: str = SAMPLES, training: str = "exit 0", **options: float) -> Job:
        jobs.append(Job(tmp_path, telemetry, training, **options))
        return jobs[-1]

    yield begin
    for job in jobs:
        try:
            os.killpg(job.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        job.process.communicate()


def test_a_job_that_goes_well_ends_with_0(start):
    job = start()
    ended = job.finish()
    assert job.process.returncode == 0, job.output
    assert (ended.failed_stage, ended.training_exit_code, ended.telemetry_exit_code) == (None, 0, 0)
    # By hand, the script itself is the job, as job.json says.
    assert ended.job_id == str(job.process.pid)
    assert read_record(job.paths.job, JobRecord).job_id == ended.job_id
    assert read_json(job.paths.environment)["job_id"] == ended.job_id
    assert ended.script_sha256 == hashlib.sha256(job.paths.script.read_bytes()).hexdigest()
    assert job.output == ""


def test_training_that_fails_leaves_its_exit_code(start):
    job = start(training="echo 'it broke' >&2; exit 3")
    ended = job.finish()
    assert job.process.returncode == 1
    assert (ended.failed_stage, ended.training_exit_code) == ("training", 3)
    assert ended.telemetry_exit_code == 0
    found = outcome.classify(job.paths, JobState("FINISHED"))
    assert found.outcome is Outcome.ERROR
    assert "it broke" in found.cause


#: What a sampler writes of two GPUs, the second of which cools from 50 °C at every step of $run/go.
COOLS = """
    header="{header}"
    echo '{start}' >"$run/telemetry/node1.json"
    {{ echo "$header"; echo "1.0,0,80.0,36.0,,,,,,"; echo "1.0,1,80.0,50.0,,,,,,"; }} \
        >"$run/telemetry/node1.csv"
    touch "$run/telemetry/node1.ready"
    while [ ! -e "$run/go" ] && [ ! -e "$run/telemetry/stop" ]; do sleep 0.02; done
    printf '2.0,1,80.0,40.0,,,,,,\n3.0,1,80.0,9' >>"$run/telemetry/node1.csv"
    {until_stopped}
""".format(
    header=",".join(column.name for column in GPU_SAMPLES),
    start=json.dumps(
        dataclasses.asdict(
            TelemetryStart("node1", "simulated", True, 1.0, 10.0, ({"name": "a"},) * 2, {})
        )
    ),
    until_stopped=UNTIL_STOPPED,
)
COOL_DOWN = {"cool_down_to_c": 40.0, "cool_down_limit_s": 60.0}
DIES_IN_BASELINE = 'touch "$run/telemetry/node1.ready"; sleep 0.3; echo "disk full" >&2; exit 5'
_WARM = COOLS.replace("40.0", "45.0")
DIES_IN_COOL_DOWN = _WARM.replace(UNTIL_STOPPED, "echo 'no more' >&2; exit 5")


@pytest.mark.parametrize(
    ("telemetry", "stage", "options", "words"),
    [
        ("echo 'no sensors' >&2; exit 5", "telemetry", {}, "no sensors"),
        (DIES_IN_BASELINE, "baseline", {"idle_baseline_s": 1}, "disk full"),
        (DIES_IN_COOL_DOWN, "cool_down", COOL_DOWN, "no more"),
    ],
)
def test_telemetry_that_dies_before_training_stops_the_run(start, telemetry, stage, options, words):
    job = start(telemetry=telemetry, training="touch $run/trained", **options)
    if stage == "cool_down":
        job.until(job.paths.telemetry_ready("node1").exists)
        (job.paths.directory / "go").touch()
    ended = job.finish()
    assert job.process.returncode == 1
    assert (ended.failed_stage, ended.telemetry_exit_code) == (stage, 5)
    assert ended.training_exit_code is None
    assert not (job.paths.directory / "trained").exists()
    found = outcome.classify(job.paths, JobState("FINISHED"))
    assert found.outcome is Outcome.TELEMETRY_INVALID
    assert words in found.cause


def test_telemetry_that_dies_in_training_stops_the_run(start):
    dies = """
        touch "$run/telemetry/node1.ready"
        while [ ! -e "$run/training.pid" ]; do sleep 0.02; done
        echo "node1: the GPU fell off the bus" >&2
        exit 9"""
    job = start(telemetry=dies, training=TRAINS_FOR_LONG)
    training = job.training_process()
    ended = job.finish()
    assert job.process.returncode == 1
    assert (ended.failed_stage, ended.training_exit_code) == ("training", 143)
    assert ended.telemetry_exit_code == 9
    assert not is_running(training)
    assert job.output.startswith("triptych: ")
    assert job.output.count("\n") == 1
    found = outcome.classify(job.paths, JobState("FINISHED"))
    assert found.outcome is Outcome.TELEMETRY_INVALID
    assert "exit code 9: node1: " in found.cause


@pytest.mark.long
def test_a_sampler_that_hangs_does_not_keep_the_job_from_ending(start):
    hangs = 'touch "$run/telemetry/node1.ready"; trap "" TERM; while :; do sleep 0.1; done'
    job = start(telemetry=hangs)
    ended = job.finish()
    assert (ended.failed_stage, ended.training_exit_code) == (None, 0)
    assert ended.telemetry_exit_code == 137


def has_looked(job) -> bool:
    """Whether the job's cool-down has read temperatures, and sleeps until it looks again."""
    for process in psutil.Process(job.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "cool-down" in process.cmdline():
                spent = process.cpu_times()
                time.sleep(0.4)
                asleep = process.status() == psutil.STATUS_SLEEPING
                return asleep and spent.user > 0 and process.cpu_times() == spent
    return False


def test_a_job_waits_until_the_hottest_gpu_is_cool(start):
    job = start(telemetry=COOLS, training="touch $run/trained", **COOL_DOWN)
    job.until(lambda: has_looked(job))
    assert not (job.paths.directory / "trained").exists()
    (job.paths.directory / "go").touch()
    ended = job.finish()
    assert (ended.failed_stage, ended.training_exit_code) == (None, 0)
    assert job.output == ""
    cooled = read_record(job.paths.cool_down, CoolDown)
    assert cooled.reached
    # GPU 0 has 36 °C throughout; the half-written line of 9… °C is none.
    assert (cooled.hottest_before_c, cooled.hottest_after_c) == (50.0, 40.0)
    assert cooled.waited_s > 0


def test_a_job_goes_on_when_gpus_stay_warm_and_says_so(start):
    job = start(telemetry=COOLS, cool_down_to_c=40.0, cool_down_limit_s=0.2)
    ended = job.finish()
    assert (ended.failed_stage, ended.training_exit_code) == (None, 0)
    assert "50 °C" in job.output
    cooled = read_record(job.paths.cool_down, CoolDown)
    assert not cooled.reached
    assert (cooled.hottest_before_c, cooled.hottest_after_c) == (50.0, 50.0)
    assert cooled.waited_s >= 0.2


def test_gpus_without_a_temperature_end_the_run_before_training(start):
    silent = COOLS.replace("1.0,1,80.0,50.0", "1.0,1,80.0,")
    options = {"cool_down_to_c": 40.0, "cool_down_limit_s": 0.2}
    job = start(telemetry=silent, training="touch $run/trained", **options)
    ended = job.finish()
    assert (ended.failed_stage, ended.training_exit_code) == ("cool_down", None)
    assert not (job.paths.directory / "trained").exists()
    assert not job.paths.cool_down.exists()
    assert outcome.classify(job.paths, JobState("FINISHED")).outcome is Outcome.TELEMETRY_INVALID


@pytest.mark.parametrize(
    ("number", "stage", "exit_code", "expected"),
    [
        (signal.SIGTERM, "interrupted", 143, Outcome.CANCELLED),
        (signal.SIGINT, "interrupted", 143, Outcome.CANCELLED),
        (signal.SIGUSR2, "time_limit", 140, Outcome.TIMEOUT),
    ],
)
def test_a_signal_ends_training_first_then_telemetry(start, number, stage, exit_code, expected):
    job = start(training=TRAINS_FOR_LONG)
    training = job.training_process()
    job.process.send_signal(number)
    ended = job.finish()
    assert job.process.returncode == exit_code
    assert ended.failed_stage == stage
    assert (ended.training_exit_code, ended.telemetry_exit_code) == (143, 0)
    assert not is_running(training)
    assert outcome.classify(job.paths, JobState("FINISHED")).outcome is expected


def test_a_signal_is_heard_that_comes_before_training_has_a_name(start):
    """Between the command that starts it and the one that keeps its process."""
    signals = '[ -z "$training$helper" ] && [ "$stage" = training ] && kill -TERM "$$"'
    job = start(training=TRAINS_FOR_LONG, script=('    "$@" &\n', f'    "$@" &\n    {signals}\n'))
    ended = job.finish()
    assert ended.failed_stage == "interrupted"
    assert (ended.training_exit_code, ended.telemetry_exit_code) == (143, 0)


@pytest.mark.parametrize(
    ("options", "word", "number", "stage"),
    [
        ({"telemetry": NEVER_READY}, "wait-for-telemetry", signal.SIGTERM, "interrupted"),
        ({"telemetry": COOLS, **COOL_DOWN}, "cool-down", signal.SIGTERM, "interrupted"),
        ({"idle_baseline_s": 60}, "sleep", signal.SIGUSR2, "time_limit"),
    ],
)
def test_a_signal_is_heard_before_training(start, options, word, number, stage):
    job = start(**options)
    job.until(lambda: job.runs(word))
    job.process.send_signal(number)
    ended = job.finish()
    assert (ended.failed_stage, ended.training_exit_code) == (stage, None)
    if word == "wait-for-telemetry":
        assert ended.telemetry_exit_code == 0
    assert not job.paths.cool_down.exists()


def test_a_script_that_is_killed_leaves_no_end_record_and_its_run_is_an_error(start):
    job = start(training=f'echo $$ >"$run/training.pid"; {UNTIL_STOPPED}')
    job.training_process()
    known = JobRecord("local", str(job.process.pid), 1.0, "a test")
    assert Local().state(known) == JobState("RUNNING")
    job.process.kill()
    job.process.wait()
    assert not job.paths.ended.exists()
    state = Local().state(known)
    assert state == JobState("FINISHED")
    assert outcome.classify(job.paths, state).outcome is Outcome.ERROR
    job.paths.telemetry_stop.touch()


def test_a_process_that_has_the_scripts_traps_still_does_not_end_the_run(tmp_path):
    """As what watches training has them, where it is ended before it is another program."""
    recorders = scripts.Recorders(tmp_path)
    recorders.add("recorder")
    site = scripts.platform(tmp_path, "local", python="recorder")
    cell = scripts.with_telemetry(scripts.planned("demo").cell)
    script = scripts.write(cell, site, tmp_path, tmp_path / "results").run_directory / "job.sh"
    text = script.read_text(encoding="utf-8")
    assert text.endswith("\nexit 0\n")
    # trap -- 'what it does' EXIT
    beside = 'eval "set -- $(trap -p EXIT)"\neval "$3" &\nwait\nexit 0\n'
    script.write_text(text.removesuffix("exit 0\n") + beside, encoding="utf-8")
    assert recorders.run(script).returncode == 0
    commands = [call.argv[3] for call in recorders.calls() if "--job" in call.argv]
    assert sorted(commands) == ["begin", "end"]


def test_a_child_that_a_signal_ends_does_not_end_the_run(tmp_path):
    """What a script starts has its traps until it is another program. Thirty scripts are ended
    while they start programs: without the condition a third of such kills ends the run twice."""
    text = runs.rendered(tmp_path, "smoke-h200").script.read_text(encoding="utf-8")
    (trap,) = (line for line in text.splitlines() if line.endswith("EXIT") and "finish" in line)
    ends, begun = tmp_path / "ends", tmp_path / "begun"
    script = (
        f"finish() {{ echo $BASHPID >>{ends}; }}\n{trap}\ntrap 'exit 143' TERM\n"
        f"touch {begun}\nwhile :; do sleep 0.0005 & wait $!; done\n"
    )
    ended = []
    for count in range(30):
        begun.unlink(missing_ok=True)
        with subprocess.Popen(["bash", "-c", script], start_new_session=True) as process:
            while not begun.exists():
                pass
            time.sleep(count % 8 / 1000)
            os.killpg(process.pid, signal.SIGTERM)
        ended.append(str(process.pid))
    assert ends.read_text(encoding="utf-8").split() == ended


def test_a_script_for_slurm_runs_under_no_shell_alone(tmp_path):
    run = runs.rendered(tmp_path, "smoke-h200")
    environment = {name: value for name, value in os.environ.items() if "SLURM" not in name}
    done = subprocess.run(
        ["bash", str(run.script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "sbatch" in done.stderr
