"""Many runs as tasks of one job: each is its run's own script, and is waited for as any other."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch import runs, scripts
from tests.programs import well
from workflow_lib import cells, results
from workflow_lib.launch import __main__ as command
from workflow_lib.launch import array, job_script, run_place, snapshot
from workflow_lib.launch.schedulers.refusals import SubmissionError
from workflow_lib.records.cell import Cell, Data
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import JobRecord, Outcome, OutcomeRecord, SubmissionRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json


class Sbatch:
    """An ``sbatch`` that keeps what it was given and numbers jobs from 71."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.command = directory / "bin" / "sbatch"
        self.command.parent.mkdir()
        self.does("")

    def does(self, commands: str) -> None:
        """Do this before the job's number is printed."""
        self.command.write_text(
            f'#!/bin/bash\ncd {self.directory}\nprintf "%s\\n" "$@" ENDS >>arguments\n{commands}\n'
            'n=$(grep -c ENDS arguments)\necho "$((70 + n));cluster"\n'
        )
        self.command.chmod(0o755)

    def calls(self) -> list[list[str]]:
        """Arguments of every call."""
        file = self.directory / "arguments"
        text = file.read_text() if file.exists() else ""
        return [call.splitlines() for call in re.split(r"ENDS\n", text)[:-1]]


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    made = Sbatch(tmp_path)
    monkeypatch.setenv("PATH", str(made.command.parent), prepend=":")
    return made


def write(directory, tmp_path, cell, minutes=15, **changes) -> RunPaths:
    """A run's cell and script, of the h200 platform with some keys changed."""
    site = scripts.platform(tmp_path, "h200", python="python3", **changes)
    places = job_script.Places(tmp_path, directory, None, snapshot.write(tmp_path / "code"))
    job_script.write(cell, job_script.job_script(cell, site, places, minutes), directory)
    return RunPaths(directory)


@pytest.fixture
def rendered(tmp_path):
    """Render a run of the cluster's smoke test; returns its paths."""

    def render_one(number: int, minutes: int = 15, **changes: object) -> RunPaths:
        cell = scripts.with_telemetry(scripts.planned("smoke-h200").cell)
        directory = results.run_directory(tmp_path / "results", cell.id, number)
        return write(directory, tmp_path, cell, minutes, **changes)

    return render_one


def submit(some, tmp_path, at_once=4):
    return array.submit_all([paths.directory for paths in some], tmp_path / "results", at_once)


def read_cell(directory: Path) -> Cell:
    return read_record(RunPaths(directory).cell, Cell)


def job_of(paths):
    return read_record(paths.job, JobRecord).job_id


def asked(script):
    return re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", script.read_text(), flags=re.MULTILINE)


def test_runs_that_ask_for_the_same_become_one_array(rendered, sbatch, tmp_path):
    some = [rendered(1, 15), rendered(2, 40), rendered(3, 20)]
    assert submit(some, tmp_path, at_once=2) == ["71"]
    assert [job_of(paths) for paths in some] == ["71_1", "71_2", "71_3"]
    (arguments,) = sbatch.calls()
    script = Path(arguments[-1])
    request = dict(asked(script))
    assert (request["time"], request["array"]) == ("40", "1-3%2")
    # All else is what each run asks for.
    own = dict(asked(some[0].script))
    assert {**own, "time": "40", "array": "1-3%2", "job-name": request["job-name"]} == request
    # Each task's log goes where the run's would.
    output = next(each for each in arguments if each.startswith("--output="))
    pattern = output.removeprefix("--output=").replace("%A", "71").replace("%a", "2")
    assert Path(pattern).parent.resolve() == some[1].logs.resolve()
    assert Path(pattern).name == "slurm-71_2.log"


@pytest.mark.parametrize(
    ("longest", "qos", "jobs"),
    [
        # One that asks for something else goes into another array.
        (1000, "long", ["71_1", "72_1", "71_2"]),
        # An array is no longer than Slurm takes.
        (2, None, ["71_1", "71_2", "72_1"]),
    ],
)
def test_runs_that_do_not_fit_are_another(
    rendered, sbatch, tmp_path, monkeypatch, longest, qos, jobs
):
    monkeypatch.setattr(array, "LONGEST", longest)
    some = [rendered(1), rendered(2, **({"qos": qos} if qos else {})), rendered(3)]
    assert submit(some, tmp_path) == ["71", "72"]
    assert [job_of(paths) for paths in some] == jobs


def test_every_run_is_announced_before_slurm_hears_of_it(rendered, sbatch, tmp_path):
    sbatch.does("find results -name submission.json >announced")
    some = [rendered(1), rendered(2)]
    submit(some, tmp_path)
    announced = (tmp_path / "announced").read_text().split()
    assert sorted(announced) == sorted(
        str(paths.submission.relative_to(tmp_path)) for paths in some
    )
    told = [read_record(paths.submission, SubmissionRecord) for paths in some]
    assert [each.array_task for each in told] == [1, 2]
    assert {each.job_name for each in told} == {
        dict(asked(Path(sbatch.calls()[0][-1])))["job-name"]
    }


def test_what_has_a_result_a_job_or_an_end_record_is_left_alone(rendered, sbatch, tmp_path, capsys):
    done, submitted, announced, ended = (rendered(number) for number in (1, 2, 3, 4))
    outcome = OutcomeRecord(Outcome.OUT_OF_MEMORY, "", "5", (), None, None, None, False)
    write_json(done.outcome, outcome)
    write_json(submitted.job, JobRecord("slurm", "6", 0.0, "somebody"))
    write_json(announced.submission, SubmissionRecord("name", 0.0, "somebody"))
    runs.end(ended)
    assert submit([done, submitted, announced, ended], tmp_path) == []
    assert sbatch.calls() == []
    assert "result" in capsys.readouterr().err


def test_a_failed_run_is_taken_and_its_attempt_kept(rendered, sbatch, tmp_path):
    failed = rendered(1)
    write_json(failed.job, JobRecord("slurm", "6", 0.0, "somebody"))
    outcome = OutcomeRecord(Outcome.TIMEOUT, "", "6", (), None, None, None, False)
    write_json(failed.failure, outcome)
    assert submit([failed], tmp_path) == ["71"]
    assert job_of(failed) == "71_1"
    assert not failed.failure.exists()
    assert (failed.attempts / "1" / "failure.json").exists()
    assert failed.logs.is_dir()  # Slurm makes no directory for a log


def test_a_run_that_a_process_waits_for_is_left_to_it(rendered, sbatch, tmp_path, capsys):
    waited_for, free = rendered(1), rendered(2)
    with waited_for.lock.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        submit([waited_for, free], tmp_path)
    assert not waited_for.job.exists()
    assert not waited_for.submission.exists()
    assert job_of(free) == "71_1"
    assert str(waited_for.directory) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "stay_announced"),
    [("Invalid job array specification", False), ("Socket timed out on send/recv operation", True)],
)
def test_runs_that_slurm_may_have_stay_announced(rendered, sbatch, tmp_path, words, stay_announced):
    sbatch.does(f"echo 'sbatch: error: {words}' >&2; exit 1")
    some = [rendered(1), rendered(2)]
    with pytest.raises(SubmissionError, match=words):
        submit(some, tmp_path)
    assert [paths.submission.exists() for paths in some] == [stay_announced] * 2
    assert not any(paths.job.exists() for paths in some)


def test_nothing_is_submitted_while_a_run_lacks_something(rendered, sbatch, tmp_path):
    good, edited, absent, without = (rendered(number) for number in (1, 2, 3, 4))
    edited.script.write_text(edited.script.read_text() + "\n")
    absent.script.unlink()
    cell = read_cell(without.directory)
    text = dataclasses.replace(cell, data=Data("corpus", "text"))
    write_json(without.cell, text)
    tokens = tmp_path / "results/data/corpus/tokens.json"
    array_file = tokens.with_suffix(".bin")
    for bad, prepare, message in (
        (edited, None, "edited"),
        (absent, None, "render tokenize"),
        (without, None, f"{tokens} is not there"),
        # As in results that were unpacked from an archive.
        (
            without,
            lambda: write_json(tokens, {"tokens": 3, "dtype": "uint16"}),
            f"{array_file} is not there.* --forcerun tokenize ",
        ),
        # As where a copy was broken off.
        (without, lambda: array_file.write_bytes(b"abcd"), "4 bytes.* --forcerun tokenize "),
        (without, lambda: tokens.write_bytes(b""), f"{tokens} does.* --forcerun tokenize "),
        (runs.rendered(tmp_path), None, "not Slurm's"),
    ):
        if prepare is not None:
            prepare()
        with pytest.raises(SubmissionError, match=message):
            submit([good, bad], tmp_path)
    assert sbatch.calls() == []
    assert not good.submission.exists()


@pytest.mark.parametrize("name", ["plain", "it's $(touch canary) %a %j #\n"])
def test_a_task_runs_its_runs_script_as_it_was_submitted(name, rendered, sbatch, tmp_path):
    recorders = scripts.Recorders(tmp_path / "commands")
    for each in ("srun", "python3"):
        recorders.add(each)
    where = tmp_path / name
    (where / "results").mkdir(parents=True)
    some = [
        write(where / "results" / paths.directory.name, tmp_path, read_cell(paths.directory))
        for paths in (rendered(1), rendered(2))
    ]
    array.submit_all([paths.directory for paths in some], where / "results", 1)
    # What is rendered meanwhile is not what was submitted.
    some[1].script.write_text("touch canary\n")
    (script,) = (where / "results" / "arrays").glob("*/job.sh")
    done = recorders.run(
        *(script,), SLURM_JOB_ID="80", SLURM_ARRAY_JOB_ID="71", SLURM_ARRAY_TASK_ID="2"
    )
    assert (done.returncode, done.stderr) == (0, "")
    nodes = recorders.module_arguments("python3", "workflow_lib.launch.job.node")
    assert {tuple(each[2:4]) for each in nodes} == {
        (verb, str(some[1].directory)) for verb in ("begin", "wait-for-telemetry", "end")
    }
    jobs = [each[each.index("--job") + 1] for each in nodes if "--job" in each]
    assert jobs == ["71_2", "71_2"]
    assert not [path for path in tmp_path.rglob("canary*") if path.is_file()]


@pytest.mark.parametrize(
    "checker", [["bash", "-n"], [str(Path(sys.executable).parent / "shellcheck")]]
)
def test_the_arrays_script_is_sound_shell(checker, rendered, sbatch, tmp_path):
    submit([rendered(1), rendered(2)], tmp_path)
    script = sbatch.calls()[0][-1]
    well(subprocess.run([*checker, script], capture_output=True, text=True, check=False))


def test_the_command_takes_every_run_of_a_sweep(sbatch, tmp_path, monkeypatch, capsys):
    arguments = ["launch", "array", "--config", str(scripts.CONFIG), "--sweep", "smoke-h200"]
    arguments += ["--results", str(tmp_path / "results"), "--at-once", "2"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert command.main() == 1
    assert "--until render tokenize" in capsys.readouterr().err
    count = 0
    for planned in cells.expand_study(scripts.study())["smoke-h200"].cells:
        for run in range(1, planned.repeats + 1):
            directory = results.run_directory(tmp_path / "results", planned.cell.id, run)
            write(directory, tmp_path, planned.cell)
            count += 1
    assert command.main() == 0
    assert f"submitted job 71 with {count} tasks" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [*arguments[:-1], "0"])
    with pytest.raises(SystemExit):
        command.main()


def test_a_run_whose_results_were_moved_is_rendered_anew(rendered, sbatch, tmp_path):
    paths = rendered(1)
    (tmp_path / "results").rename(tmp_path / "moved")
    moved = RunPaths(tmp_path / "moved" / paths.directory.relative_to(tmp_path / "results"))
    with pytest.raises(SubmissionError, match="moved"):
        array.submit_all([moved.directory], tmp_path / "moved", 4)
    assert sbatch.calls() == []

    def render_anew(directory: Path) -> None:
        write(directory, tmp_path, read_cell(directory))

    assert array.submit_all([moved.directory], tmp_path / "moved", 4, render_anew) == ["71"]
    task = next((tmp_path / "moved" / "arrays").glob("*/1.sh"))
    assert run_place.rendered_for(task) == moved.directory
    assert not (tmp_path / "results").exists()


def test_an_array_whose_id_sbatch_did_not_say_is_found_by_its_name(rendered, sbatch, tmp_path):
    some = [rendered(1), rendered(2)]
    sbatch.does("echo 2026")  # a banner's; which of the two numbers is the id, nobody can tell
    squeue = sbatch.command.with_name("squeue")
    squeue.write_text(
        '#!/bin/bash\nfor each in "$@"; do case $each in --name=*) name=${each#*=};; esac; done\n'
        'echo "71_2|$name|PENDING|Priority|0|"\n'
    )
    squeue.chmod(0o755)
    assert submit(some, tmp_path) == ["71"]
    assert [job_of(paths) for paths in some] == ["71_1", "71_2"]


def test_an_array_is_closed_and_starts_no_script_of_another_user(rendered, sbatch, tmp_path):
    usual = os.umask(0o002)
    try:
        submit([rendered(1)], tmp_path)
    finally:
        os.umask(usual)
    (script,) = (tmp_path / "results" / "arrays").glob("*/job.sh")
    for path in (script.parent, script, script.with_name("1.sh")):
        assert not path.stat().st_mode & 0o022, path
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(script.with_name("1.sh"), 54321, 54321)
    environment = os.environ | {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_JOB_ID": "71"}
    assert subprocess.run(["bash", str(script)], env=environment, check=False).returncode == 77
