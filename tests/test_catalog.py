"""The repository is what the Snakemake workflow catalog, citations and images of jobs ask for."""

import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml

import workflow_lib
from tests import programs
from tests.conftest import ROOT
from tests.programs import well
from workflow_lib.config import Invocation
from workflow_lib.study import checked


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_catalog_finds_a_workflow():
    """As its README asks: https://github.com/snakemake/snakemake-workflow-catalog."""
    readme = read("README.md").lower()
    assert "snakemake" in readme
    assert "workflow" in readme
    assert (ROOT / "workflow" / "Snakefile").is_file()
    assert list((ROOT / "rules").glob("*.smk"))
    usage = yaml.safe_load(read(".snakemake-workflow-catalog.yml"))["usage"]
    assert set(usage) == {"mandatory-flags", "software-stack-deployment", "report"}
    assert any(usage["software-stack-deployment"].values())
    (profile,) = re.findall(r"--profile (\S+)", usage["mandatory-flags"]["flags"])
    assert (ROOT / profile / "config.yaml").is_file()


def test_the_snakefile_at_the_top_makes_what_the_catalog_s_makes():
    made = []
    for name in ("Snakefile", "workflow/Snakefile"):
        command = [sys.executable, "-m", "snakemake", "-n", "--snakefile", name]
        command += ["--profile", "profiles/local", "--config", "results_directory=results/none"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        made.append(re.findall(r"(?m)^(\w+) +(\d+)$", done.stdout + done.stderr))
    assert ("run", "5") in made[1]
    assert [("all" if rule == "default" else rule, n) for rule, n in made[0]] == made[1]


@pytest.fixture
def deployed(tmp_path):
    """What `snakedeploy deploy-workflow` makes: the rules as a module at a tag, and a copy of the
    configuration and the profiles. The rules' repository has no package."""
    source = tmp_path / "source"
    for name in ("workflow", "rules", "envs", "workflow_lib/report/captions"):
        shutil.copytree(ROOT / name, source / name)
    for command in ("init", "add --all", "commit -m made", "tag v1"):
        author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(
            ["git", *author, *command.split()], cwd=source, check=True, capture_output=True
        )
    place = tmp_path / "deployed"
    for name in ("config", "profiles"):
        shutil.copytree(ROOT / name, place / name)
    (place / "workflow").mkdir()
    (place / "workflow" / "Snakefile").write_text(
        'configfile: "config/config.yaml"\n'
        "module triptych:\n"
        "    snakefile:\n"
        f'        gitfile("{source}", path="workflow/Snakefile", tag="v1")\n'
        "    config:\n"
        "        config\n"
        "use rule * from triptych\n",
        encoding="utf-8",
    )

    def dry_run(**variables):
        command = [sys.executable, "-P", "-m", "snakemake", "--profile", "profiles/local"]
        return programs.run([*command, "--dry-run"], place, os.environ | variables)

    return dry_run


@pytest.mark.long
def test_snakedeploy_deploys_it_where_the_package_is_installed(deployed, tmp_path):
    done = well(deployed(PYTHONPATH=str(ROOT)))
    assert re.search(r"^page +1$", done.stdout + done.stderr, re.MULTILINE)
    (tmp_path / "workflow_lib.py").write_text("raise ImportError\n", encoding="utf-8")
    missing = deployed(PYTHONPATH=str(tmp_path))
    assert missing.returncode != 0
    said = "the package is not here: `pip install` the version of these rules"
    assert said in missing.stdout + missing.stderr


def test_the_configurations_readme_names_what_is_there():
    page = read("config/README.md")
    named = set(re.findall(r"^\| `([a-z.]+)/?` \|", page, flags=re.MULTILINE))
    there = {path.name for path in (ROOT / "config").iterdir()}
    assert {"claims.yaml", "data", "models", "platforms", "sweeps"} <= named <= there
    for profile in re.findall(r"--profile (\S+)", page.replace("`", " ")):
        assert (ROOT / profile / "config.yaml").is_file()
    checked("config/config.yaml", Invocation, yaml.safe_load(read("config/config.yaml")))


def test_the_software_is_cited_first():
    cited = yaml.safe_load(read("CITATION.cff"))
    # GitHub and others show a preferred citation in place of the software.
    assert "preferred-citation" not in cited
    assert cited["type"] == "software"
    assert cited["version"] == workflow_lib.__version__
    assert any("2509.10371" in str(each) for each in cited["references"])


@pytest.mark.parametrize("kind", ["cuda", "rocm"])
def test_an_image_has_the_pinned_versions_and_a_pinned_base(kind):
    text = read(f"envs/{kind}.Containerfile")
    (base,) = re.findall(r"^ARG BASE=(\S+)$", text, flags=re.MULTILINE)
    assert re.fullmatch(r"[\w./-]+:[\w.-]+", base)
    assert not base.endswith(":latest")
    assert f"/opt/triptych/envs/{kind}.txt" in text
    # All that this file names is copied.
    assert "COPY envs/*.txt " in text
    installed = re.findall(r"pip install [^\\\n]*(?:\\\n[^\\\n]*)*", text)
    assert all(re.search(r"--requirement|/share/amd_smi", each) for each in installed)
