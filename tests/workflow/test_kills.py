"""Every rule is killed once, at each stage: the same command, given again, makes all that it would
have made, and what was made of what is gone does not stay.
"""

import json
import shutil

import pytest

from tests.programs import well
from tests.workflow.conftest import COMPARISON, invoke, made

pytestmark = [pytest.mark.slow, pytest.mark.long]

#: Python runs it first, in whatever the rules start: they have the checkout in PYTHONPATH.
KILLER = """
import atexit, json, os, pathlib, signal, sys

path = pathlib.Path(__file__).with_name("kill.json")
if path.exists():
    asked = json.loads(path.read_text())

    def kill():
        path.unlink()
        os.kill(os.getpid(), signal.SIGKILL)

    def replace(source, target, **options):
        original(source, target, **options)
        kill()

    if " ".join(asked["command"]) in " ".join(sys.orig_argv):
        if asked["stage"] == "first":
            kill()
        elif asked["stage"] == "last":
            atexit.register(kill)
        else:
            original, os.replace = os.replace, replace
"""
#: each rule that makes something of files that stay: its command, and what makes it due
RULES = {
    "plan": (["workflow_lib.plan"], "workflow_lib/plan.py"),
    "reduce": (["workflow_lib.analysis", "reduce"], "workflow_lib/analysis/reduce.py"),
    "traces": (["workflow_lib.analysis", "traces"], "workflow_lib/analysis/traces/decoding.py"),
    "collect": (["workflow_lib.analysis", "collect"], "workflow_lib/analysis/collect.py"),
    "figures": (["workflow_lib.report", "figures"], "workflow_lib/report/figures/html.py"),
    "page": (["workflow_lib.report", "page"], "workflow_lib/report/figures/html.py"),
    "compare": (["workflow_lib.comparison"], "workflow_lib/comparison/compare.py"),
}
STATE = ("results", ".snakemake")
STAGES = ("first", "between", "last")
#: each takes a minute and more: the others are for `make test-all`
USUAL = {("page", "last")}


@pytest.fixture(scope="module")
def whole(compared, tmp_path_factory):
    """A copy of what was made without faults, and of what Snakemake knows of it."""
    copied = tmp_path_factory.mktemp("whole")
    for name in STATE:
        shutil.copytree(compared.directory / name, copied / name, symlinks=True)
    return copied


@pytest.fixture
def done(compared, whole):
    """The sweep that ran without faults, whatever the test before left, where what runs next may be
    killed.
    """
    for name in STATE:
        shutil.rmtree(compared.directory / name)
        shutil.copytree(whole / name, compared.directory / name, symlinks=True)
    (compared.directory / "sitecustomize.py").write_text(KILLER, encoding="utf-8")
    (compared.directory / "kill.json").unlink(missing_ok=True)
    return compared


@pytest.mark.parametrize(
    ("rule", "stage"),
    [
        pytest.param(rule, stage, marks=() if (rule, stage) in USUAL else pytest.mark.kills)
        for rule in RULES
        for stage in STAGES
    ],
)
def test_what_a_kill_takes_the_same_command_makes_again(done, rule, stage):
    command, source = RULES[rule]
    before = made(done)
    assert COMPARISON.removeprefix("results/") in before
    with (done.directory / source).open("a", encoding="utf-8") as stream:
        stream.write("\n")
    order = done.directory / "kill.json"
    order.write_text(json.dumps({"command": command, "stage": stage}), encoding="utf-8")

    killed = invoke(done)
    assert not order.exists(), f"nothing was killed\n{killed.stdout}{killed.stderr}"
    assert killed.returncode != 0, killed.stdout + killed.stderr
    for view in (done.directory / "results" / "sweeps").iterdir():
        if not (view / "runs.parquet").exists():
            assert not (view / "report.html").exists(), "a report outlived its tables"
            assert not (done.directory / COMPARISON).exists(), "a comparison outlived its tables"

    well(invoke(done))
    after = made(done)
    assert after.keys() == before.keys()
    assert [name for name in before if before[name] != after[name]] == []


def test_every_file_that_a_report_rests_on_is_made_again_where_it_is_gone(done):
    before = made(done)
    results = done.directory / "results"
    for name in ("plan", "cells", "overhead", "kernels"):
        (results / "sweeps" / "tiny" / f"{name}.parquet").unlink()
    shutil.rmtree(results / "sweeps" / "tiny" / "figures")
    (summary,) = results.glob("cells/*/*/*/run1/summary.json")
    (kernels,) = results.glob("cells/*/*/*/run0/traces/kernels.parquet")
    summary.unlink()
    kernels.unlink()
    well(invoke(done))
    assert made(done) == before
