"""Every ``snakemake --profile slurm_…`` that the documentation has finds something to do."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.test_docs import PAGES
from tests.workflow.conftest import copy

#: in backticks, or a line of a block of commands
COMMANDS = re.compile(r"snakemake (--profile (?:profiles/)?slurm_[^`#\n]*)")

#: parts of commands of which a clone does not have all
ELSEWHERE = ("/scratch", "…", "[placed]", "[limits]")

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


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    return copy(tmp_path_factory.mktemp("documented") / "clone")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(each, marks=() if each.endswith(OF_THE_README) else pytest.mark.long)
        for each in documented()
    ],
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
def test_a_platform_without_a_usual_sweep_says_which_it_has(clone):
    said = clone.snakemake("all", "--profile", "profiles/slurm_h200x2", "--dry-run")
    assert said.returncode != 0
    (named,) = re.findall(r"is for platform h200x2; these are: (.*)", said.stdout + said.stderr)
    assert "evidence-llama3-8b-x2" in re.split("[, ]+", named)
