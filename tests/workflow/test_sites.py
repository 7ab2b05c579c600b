"""What machines and file systems may be like: nothing is lost, and a sentence says why."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import well
from tests.waiting import until
from tests.workflow.conftest import SNAKEMAKE, SWEEP, Checkout
from tests.workflow.test_bad_input import message_of
from workflow_lib.cells import expand_study
from workflow_lib.study import load_study

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root can mount"
    ),
]
TARGET = "results/sweeps/tiny/report.html"
MATRIX = [{"models": "gpt3-tiny", "gpus": 2, "dp": 2}]


def snakemake(
    checkout: Checkout, before: str = ":", *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """The workflow in mounts of its own, after a shell command has changed them."""
    command = [str(SNAKEMAKE), "--profile", "profiles/local", *(arguments or (TARGET,))]
    return checkout.call(
        "unshare", "--mount", "bash", "-c", f'{before} && exec "$@"', "bash", *command, **variables
    )


def remounted(directory: str) -> str:
    """A command that makes a directory read-only."""
    return f"mount --bind {directory} {directory} && mount -o remount,ro,bind {directory}"


def test_read_only_results_are_refused_in_a_sentence_and_can_be_looked_at(checkout):
    (checkout.directory / "results").mkdir()
    done = snakemake(checkout, remounted("results"))
    message = message_of(done)
    assert f"{checkout.directory}/results cannot be written" in message
    assert "workflow_lib.status --results" in message
    assert list((checkout.directory / "results").iterdir()) == []


def test_results_that_others_may_not_look_into_are_refused_in_a_sentence(checkout):
    hidden = checkout.directory / "hidden"
    hidden.mkdir(mode=0o700)
    os.chown(hidden, 1, 1)
    as_another = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    settings = ["--config", "results_directory=hidden/results"]
    command = [str(SNAKEMAKE), "--profile", "profiles/local", *settings]
    looking = [sys.executable, "-m", "workflow_lib.status", "--results", "hidden/results"]
    for call, said in (
        (command, f"{hidden} cannot be written to, and results go there"),
        (looking, "hidden/results is not a directory that you may read"),
    ):
        done = checkout.call(*as_another, *call)
        assert said in " ".join((done.stdout + done.stderr).split())
        assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("refused", "mode", "single"),
    [
        pytest.param(".", 0o000, False, marks=pytest.mark.kills),
        (".", 0o600, False),
        ("tokens.json", 0, False),
        pytest.param("tokens.bin", 0, False, marks=pytest.mark.kills),
        (".", 0o000, True),
    ],
)
def test_tokens_that_cannot_be_read_are_refused_in_a_sentence(checkout, refused, mode, single):
    data = checkout.directory / "config" / "data" / "mine.yaml"
    data.write_text("description: mine\nkind: text\ntokenizer: bytes\nsources: [corpus.txt]\n")
    checkout.write_sweep(data="mine")
    directory = Path("results/data/mine")
    (checkout.directory / directory).mkdir(parents=True)
    for name in ("tokens.json", "tokens.bin"):
        (checkout.directory / directory / name).write_bytes(b"")
    os.chown(checkout.directory / directory / refused, 1, 1)
    (checkout.directory / directory / refused).chmod(mode)
    study = load_study(checkout.directory / "config")
    cell = expand_study(study)[Path(TARGET).parent.name].cells[0].cell
    target = f"results/cells/{cell.id}/run1/outcome.json" if single else TARGET
    done = checkout.call(
        *("setpriv", "--bounding-set", "-dac_override,-dac_read_search"),
        *(str(SNAKEMAKE), "--profile", "profiles/local", target),
    )
    message = " ".join(message_of(done).split())
    assert f"{directory / refused} cannot be read" in message
    assert "text mine" in message
    assert re.search("`ls -ld` .*`--config", message)


def test_a_read_only_checkout_is_refused_in_a_sentence(checkout):
    done = snakemake(checkout, f"{remounted('.')} && cd .")
    assert re.search("cannot be written .*records", message_of(done))


def test_the_directory_of_a_user_who_lets_others_only_read_is_refused_in_a_sentence(checkout):
    """Root without the right to override modes is like a user of the owner's group."""
    records = checkout.directory / ".snakemake"
    records.mkdir(mode=0o750)
    os.chown(records, 1, 1)
    command = [str(SNAKEMAKE), "--profile", "profiles/local", TARGET]
    done = checkout.call("setpriv", "--bounding-set", "-dac_override", *command)
    assert f"{records} cannot be written" in message_of(done)
    assert not (checkout.directory / "results").exists()


@pytest.mark.long
def test_a_full_tmpdir_and_no_shared_memory_and_a_read_only_home_hinder_nothing(checkout, tmp_path):
    checkout.write_sweep(matrix=MATRIX)
    full, home, cache = (tmp_path / name for name in ("full", "home", "cache"))
    for directory in (full, home, cache):
        directory.mkdir()
    changes = (
        f"mount -t tmpfs -o size=64k tmpfs {full}",
        f"{{ head -c 64k /dev/zero >{full}/all; mount -t tmpfs -o ro,size=4k tmpfs /dev/shm; }}",
        remounted(str(home)),
    )
    # Snakemake itself needs a cache.
    where = {"TMPDIR": str(full), "HOME": str(home), "XDG_CACHE_HOME": str(cache)}
    well(snakemake(checkout, " && ".join(changes), **where))
    (run,) = checkout.runs().values()
    assert json.loads(run.outcome.read_text())["outcome"] == "completed"


@pytest.mark.long
@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-30, "the clock went backwards"),
        pytest.param(3600, "the clock was set ahead by 3[56]", marks=pytest.mark.kills),
    ],
)
def test_a_clock_that_is_set_while_a_run_trains_is_named(checkout, wall_clock, seconds, said):
    protocol = SWEEP["protocol"] | {"measured_steps": 30}
    checkout.write_sweep(matrix=[MATRIX[0] | {"gpus": 1, "dp": 1}], protocol=protocol)
    with subprocess.Popen(
        [str(SNAKEMAKE), "--profile", "profiles/local", TARGET],
        cwd=checkout.directory,
        env=os.environ | wall_clock.variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as workflow:
        until(lambda: any(_lines(run.rank_steps(0)) > 5 for run in checkout.runs().values()))
        wall_clock.set_ahead(seconds)
        assert workflow.wait() != 0
    (run,) = checkout.runs().values()
    failure = json.loads(run.failure.read_text())
    assert failure["outcome"] == "telemetry_invalid"
    assert re.search(said, failure["cause"])
    assert _lines(run.rank_steps(0)) == 1 + protocol["warmup_steps"] + 30


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
