"""Runs sweeps: starts Snakemake with the profile of their platform.

``triptych run smoke-h200`` has Snakemake measure that sweep and make its tables, figures and
report, with the profile slurm_h200. ``triptych run --platform h200`` runs all sweeps of
config/config.yaml for that platform. The command prints Snakemake's command and becomes it. Before
the first run on a platform of Slurm it checks the platform, as ``triptych check`` does. With
``--brief``, Snakemake's log goes to a file, and a few lines show the progress. Options after two
hyphens are Snakemake's.
"""

from __future__ import annotations

import argparse
import getpass
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from workflow_lib import cells, check, checkout, results
from workflow_lib.brief import follow
from workflow_lib.config import Invocation, Platform
from workflow_lib.records.reading import RecordError
from workflow_lib.records.whole_files import report_error
from workflow_lib.study import ConfigError, checked, load_study, lookup, plain_of

_INVOCATION = Path("config/config.yaml")
#: options with which Snakemake runs no job
_RUNS_NOTHING = {
    "-n",
    "--dry-run",
    "--dryrun",
    "--unlock",
    "--list",
    "--summary",
    "--lint",
    "--dag",
}


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=__doc__,
        usage=f"{prog} [-h] [--platform NAME] [--config DIR] [--results DIR] [--brief] "
        "[--dry-run] [SWEEP ...] [-- SNAKEMAKE'S OPTIONS]",
    )
    parser.add_argument(
        "sweeps", nargs="*", metavar="SWEEP", help="as the plan calls it, for example smoke-h200"
    )
    parser.add_argument("--platform", help="of config/platforms; the sweeps' own unless given")
    parser.add_argument(
        "--config", type=Path, help="the configuration; as config/config.yaml says unless given"
    )
    parser.add_argument(
        "--results", type=Path, help="where results go; as config/config.yaml says unless given"
    )
    parser.add_argument(
        "--brief", action="store_true", help="a line for each run in place of Snakemake's log"
    )
    parser.add_argument(
        "-n", "--dry-run", action="store_true", help="only say what would run, and why"
    )
    return parser


def snakemake_command(
    chosen: argparse.Namespace, rest: Sequence[str], invocation: Invocation
) -> tuple[list[str], str, Platform]:
    """Snakemake's command for the options ``chosen``, and the platform with its name.
    ``invocation`` is config/config.yaml, and ``rest`` are Snakemake's own options.

    Raises ConfigError if a name is wrong, if no platform or several are meant, or if options
    contradict each other. Raises RecordError and OSError if the configuration cannot be read.
    """
    if chosen.brief and (chosen.dry_run or not chosen.sweeps):
        raise ConfigError(
            "--brief says how far sweeps are: name them, as in `triptych run demo --brief`, and "
            "leave out --dry-run"
        )
    if any(option == "--config" or option.startswith("--config=") for option in rest):
        raise ConfigError(
            "--config goes before the --, as a directory; to change other settings of "
            "config/config.yaml, use snakemake --profile … --config itself"
        )
    configuration = chosen.config or Path(invocation.config_directory)
    study = load_study(configuration)
    sweeps = cells.expand_study(study) if chosen.sweeps else {}
    name = _platform(chosen, study.platforms, sweeps)
    command = [sys.executable, "-m", "snakemake", "--profile", str(_profile(name, study.platforms))]
    settings = {"config_directory": chosen.config, "results_directory": chosen.results}
    given = [f"{key}={value}" for key, value in settings.items() if value is not None]
    if chosen.sweeps:
        # The target is not the report: Snakemake would then not notice a missing table.
        files = dict.fromkeys(sweeps[sweep].spec for sweep in chosen.sweeps)
        given.append(f"sweeps=[{','.join(files)}]")
    command += ["--config", *given] if given else []
    command += [*(["--dry-run"] if chosen.dry_run else []), *rest]
    return command, name, study.platforms[name]


def _platform(
    chosen: argparse.Namespace, platforms: Mapping[str, Platform], sweeps: Mapping[str, cells.Sweep]
) -> str:
    """The platform of the sweeps and of --platform. Raises ConfigError if there is not just one."""
    meant = {lookup("sweep", name, sweeps).platform: name for name in chosen.sweeps}
    if chosen.platform is not None:
        lookup("platform", chosen.platform, platforms)
        meant.setdefault(chosen.platform, "--platform")
    if not meant:
        raise ConfigError(
            "say what to run: a sweep, as in `triptych run demo`, or --platform with one of "
            f"{', '.join(platforms)}; `triptych plan --platform h200` lists sweeps"
        )
    if len(meant) > 1:
        meanings = ", ".join(f"{name} means {platform}" for platform, name in meant.items())
        raise ConfigError(f"one command runs one platform: {meanings}; give a command for each")
    return next(iter(meant))


def _profile(platform: str, platforms: Mapping[str, Platform]) -> Path:
    """The directory of the platform's profile. Raises ConfigError if there is none."""
    profile = Path("profiles") / platforms[platform].profile(platform)
    if not profile.is_dir():
        raise ConfigError(f"{profile} is not there; `make profiles` writes what is missing")
    return profile


def _refuse_unknown_user() -> None:
    """Raise ConfigError if the system does not know this user, as in a container with ``--user``:
    Snakemake would end in a traceback."""
    try:
        getpass.getuser()
        Path.home()
    except (KeyError, OSError, RuntimeError):  # the first of Python up to 3.12
        raise ConfigError(
            "the system knows no name or no home directory of this user, and Snakemake asks for "
            "both: set USER and HOME, as in export USER=me HOME=/tmp/home"
        ) from None


def _refuse_without_cache() -> None:
    """Raise ConfigError if Snakemake cannot write its cache: it would end in a traceback."""
    given = os.environ.get("XDG_CACHE_HOME")
    cache = Path(given).absolute() if given else Path("~/.cache").expanduser()
    there = results.nearest_existing(cache)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(
            f"Snakemake keeps a cache in {cache}, and {there} cannot be written to: set "
            "XDG_CACHE_HOME to a directory of yours, as in export XDG_CACHE_HOME=/tmp/cache"
        )


def main(arguments: Sequence[str] | None = None, prog: str = "python -m workflow_lib.run") -> int:
    """Become Snakemake. Returns 1 after one message if that fails; with ``--brief`` returns
    Snakemake's exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    end = given.index("--") if "--" in given else len(given)
    chosen = command_line(prog).parse_args(given[:end])
    try:
        clone = checkout.here()
        path = clone / _INVOCATION
        invocation = checked(str(path), Invocation, plain_of(path))
        command, name, platform = snakemake_command(chosen, given[end + 1 :], invocation)
        _refuse_unknown_user()
        _refuse_without_cache()
        root = chosen.results or Path(invocation.results_directory)
        if broken := results.broken_link(root.absolute()):
            raise ConfigError(broken)
        print(shlex.join(["snakemake", *command[3:]]), flush=True)
        configuration = chosen.config or Path(invocation.config_directory)
        runs_nothing = not _RUNS_NOTHING.isdisjoint(command)
        if not runs_nothing and check.is_due(root, name, platform):
            where = ("--config", str(configuration), "--results", str(root))
            if code := check.main(["--platform", name, *where]):
                print("Nothing was run; `snakemake` itself runs without a check", file=sys.stderr)
                return code
        if chosen.brief:
            return follow(command, root, chosen.sweeps, clone)
        # exec, not a child process: so Snakemake gets Ctrl-C, and its exit code is the command's.
        os.execv(command[0], command)
    except (checkout.CheckoutError, ConfigError, RecordError, OSError) as error:
        return report_error("triptych", error)


if __name__ == "__main__":
    sys.exit(main())
