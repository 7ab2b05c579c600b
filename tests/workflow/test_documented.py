"""Every ``snakemake --profile slurm_…`` that the documentation has finds something to do."""

import re
import shlex

import pytest
import yaml

from tests.conftest import ROOT
from tests.programs import well
from tests.test_docs import PAGES
from tests.workflow.conftest import copy
from workflow_lib import cells, check
from workflow_lib.records.checks import CheckPaths, CheckRecord
from workflow_lib.records.whole_files import write_json
from workflow_lib.study import load_study, lookup

#: in backticks, or a line of a block of commands
COMMANDS = re.compile(r"snakemake (--profile (?:profiles/)?slurm_[^`#\n]*)")

#: parts of commands of which a clone does not have all
ELSEWHERE = ("/scratch", "…", "[placed]", "[limits]")

#: what asks for the report of one sweep
REPORT = re.compile(r"--profile (?:profiles/)?(slurm_\w+) results/sweeps/([\w.-]+)/report\.html$")

#: its example
OF_THE_README = "profiles/slurm_h200x2 results/sweeps/evidence-llama3-8b-x2/report.html"


def documented():
    """The options and targets of each command, once; those for results elsewhere left out, and
    those of sweeps that the reader writes.
    """
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    found = {each.strip() for text in texts for each in COMMANDS.findall(text)}
    return sorted(
        each
        for each in found
        if not each.endswith("\\") and not any(other in each for other in ELSEWHERE)
    )


def test_the_documentation_has_such_commands():
    assert any(each.endswith(OF_THE_README) for each in documented())
    assert len(documented()) > 10


def test_a_documented_report_is_of_a_sweep_of_its_profiles_platform_that_can_run():
    asked = {match.groups() for match in map(REPORT.match, documented()) if match}
    assert len(asked) > 5
    sweeps = cells.expand_study(load_study(ROOT / "config"))
    for profile, name in asked:
        given = yaml.safe_load((ROOT / f"profiles/{profile}/platform.yaml").read_text("utf-8"))
        assert sweeps[name].platform == given["platform"], name
        assert not all(planned.reason for planned in sweeps[name].cells), name


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    return copy(tmp_path_factory.mktemp("documented") / "clone", shipped_sweeps=True)


def marks_of(command):
    """Which of the tests tries it: each starts a Snakemake, which plans the whole study."""
    if command.endswith(OF_THE_README):
        return ()
    is_rare = REPORT.match(command) or "sweeps=" in command
    return pytest.mark.kills if is_rare else pytest.mark.long


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [pytest.param(each, marks=marks_of(each)) for each in documented()],
)
def test_a_documented_command_finds_runs_to_make(command, clone):
    option, profile, *rest = shlex.split(command)
    done = clone.snakemake(
        *rest, option, f"profiles/{profile.removeprefix('profiles/')}", "--dry-run"
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert re.search(r"^(run|render)\s+\d+$", said, flags=re.MULTILINE), said


@pytest.mark.slow
def test_a_platform_of_slurm_that_no_check_passed_is_told_before_its_first_run(clone):
    asked = ("results/sweeps/smoke-h100x1/plan.parquet", "--dry-run", "--profile")
    command = "make check PLATFORM=h100x1"
    assert command in clone.snakemake(*asked, "profiles/slurm_h100x1").stderr
    platform = lookup("platform", "h100x1", load_study(clone.directory / "config").platforms)
    results = clone.directory / "results"
    passed = CheckPaths(check.directory_of(results, "h100x1", platform)).result
    write_json(passed, CheckRecord("h100x1", 0.0, True, ()))
    done = well(clone.snakemake(*asked, "profiles/slurm_h100x1"))
    assert command not in done.stderr
    # The check was of the file as it was.
    clone.edit("config/platforms/h100x1.yaml", "account: null", "account: ours")
    assert command in clone.snakemake(*asked, "profiles/slurm_h100x1").stderr


@pytest.mark.slow
def test_a_platform_without_a_usual_sweep_says_which_it_has(clone):
    said = clone.snakemake("all", "--profile", "profiles/slurm_h200x2", "--dry-run")
    assert said.returncode != 0
    (named,) = re.findall(r"is for platform h200x2; these are: (.*)", said.stdout + said.stderr)
    assert "evidence-llama3-8b-x2" in re.split("[, ]+", named)
