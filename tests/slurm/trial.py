"""A small copy of the checkout, in which the README's commands work on the throwaway Slurm.

    try-slurm/   links to everything in the checkout, but
      config/      nodes as the throwaway cluster has them, simulated GPUs, and the smoke sweep
      results/     its own
      .config/     Snakemake's profiles, so that ``--profile slurm_h200`` is found by name

``make try-slurm`` starts the cluster and calls ``python -m tests.slurm.trial``, which writes the
copy and runs the smoke sweep in it. ``make slurm-cluster-stop`` removes both.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.slurm import study
from tests.slurm.cluster import Cluster, default_directory

DIRECTORY = study.ROOT / "try-slurm"
REPORT = Path("results/sweeps/smoke-h200/report.html")
#: of the checkout, what the copy has of its own, and what is not a part of it
_OWN = (".git", ".snakemake", "build", "config", "profiles", "rebuilt", "results", DIRECTORY.name)


def write(directory: Path) -> None:
    """Write the copy, unless it is there already. Raises OSError."""
    if (directory / "config").is_dir():
        return
    directory.mkdir(parents=True, exist_ok=True)
    for path in study.ROOT.iterdir():
        if path.name not in _OWN and not (directory / path.name).is_symlink():
            (directory / path.name).symlink_to(path)
    # Of its own, too: what a check says of a profile may be done here.
    shutil.copytree(study.ROOT / "profiles", directory / "profiles", dirs_exist_ok=True)
    draft = directory / ".config-draft"
    shutil.rmtree(draft, ignore_errors=True)
    study.write(draft)
    (draft / "sweeps" / "tiny.yaml").unlink()
    shutil.copy(study.ROOT / "config" / "sweeps" / "smoke.yaml", draft / "sweeps")
    (draft / "config.yaml").write_text(
        "config_directory: config\nresults_directory: results\nsweeps: [smoke]\n", encoding="utf-8"
    )
    draft.rename(directory / "config")


def environment(directory: Path, cluster: Cluster) -> dict[str, str]:
    """The variables with which commands in the copy find the cluster and the profiles."""
    return {**cluster.environment, "XDG_CONFIG_HOME": str(directory / ".config")}


def main(arguments: list[str] | None = None) -> int:
    """Run the smoke sweep in the copy; returns the exit code."""
    parser = argparse.ArgumentParser(description="Run the smoke sweep on the throwaway Slurm.")
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="where the copy goes")
    directory: Path = parser.parse_args(arguments).directory.absolute()
    cluster = Cluster(default_directory())
    if not cluster.is_up():
        print("The throwaway Slurm is not up: make slurm-cluster starts it.", file=sys.stderr)
        return 1
    write(directory)
    variables = environment(directory, cluster)
    registered = subprocess.run(
        [sys.executable, "profiles/register.py"],
        cwd=directory,
        env=variables,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if registered.returncode:
        return registered.returncode
    snakemake = Path(sys.executable).parent / "snakemake"
    options = ("--profile", "slurm_h200", str(REPORT), "--quiet", "rules")
    print(f"In {directory}: snakemake {' '.join(options)}", flush=True)
    code = subprocess.run(
        [snakemake, *options], cwd=directory, env=variables, check=False
    ).returncode
    here = os.path.relpath(directory)
    print(
        f"""
The report: {directory / REPORT if code == 0 else "not made; make status, in the copy, says why"}
To type the README's commands yourself:
  cd {here} && export SLURM_CONF={cluster.conf} XDG_CONFIG_HOME={directory / ".config"}
To remove the cluster, its jobs and {here}/, in {study.ROOT}:
  make slurm-cluster-stop"""
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
