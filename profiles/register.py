"""Links this repository's profiles into the user's Snakemake configuration directory, so that
``snakemake --profile slurm_h200`` finds them by name.

A platform of ``config/platforms`` that runs on Slurm gets its profile first, made from
``slurm.yaml`` with the partition, account, QOS and reservation of its file. One that somebody
edited is left as it is.
"""

import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

PROFILES = Path(__file__).parent
CONFIG = PROFILES.parent / "config"
TEMPLATE = PROFILES / "slurm.yaml"
#: keys of a platform's file that its profile is made of, and the line that tells what they were
_KEYS = ("partition", "account", "qos", "reservation")
_MADE_OF = "# Until somebody edits this file, `make profiles` keeps it at its platform's "

sys.path.insert(0, str(PROFILES.parent))

from workflow_lib.config import Platform  # noqa: E402  # found beside this directory
from workflow_lib.study import ConfigError, load_study, lookup  # noqa: E402


def files_of(platform: str, described: Platform | SimpleNamespace) -> dict[str, str]:
    """The files of a Slurm platform's profile, by name."""
    config = TEMPLATE.read_text(encoding="utf-8").replace("PLATFORM", platform)
    resource = f"slurm_partition={described.partition}"
    if described.account is not None:
        config = re.sub(r"(#.*\n)slurm-no-account: true\n", "", config)
        resource += f"\n  - slurm_account={described.account}"
    if described.qos is not None:
        resource += f"\n  - qos={described.qos}"
    if described.reservation is not None:
        # Snakemake's executor takes it for all jobs alike.
        config = config.replace(
            "\ndefault-res", f"\nslurm-reservation: {described.reservation}\ndefault-res"
        )
    config = config.replace("slurm_partition=PARTITION", resource)
    made = {name: getattr(described, name) for name in _KEYS}
    return {
        "config.yaml": f"{config}{_MADE_OF}{json.dumps(made)}\n",
        "platform.yaml": f"# The platform that this profile measures.\nplatform: {platform}\n",
    }


def is_edited(directory: Path, platform: str) -> bool:
    """Whether a profile is another than the one that was made of the keys in its last line."""
    text = (directory / "config.yaml").read_text(encoding="utf-8")
    *_, last = text.splitlines() or [""]
    if not last.startswith(_MADE_OF):
        return True
    of_keys = SimpleNamespace(**json.loads(last.removeprefix(_MADE_OF)))
    return any(
        (directory / name).read_text(encoding="utf-8") != made
        for name, made in files_of(platform, of_keys).items()
    )


def make_missing() -> list[str]:
    """Write the profile of each platform on Slurm, unless somebody edited the one that is there.

    Returns the mistakes in files of platforms, and what could not be written.
    """
    mistakes, platforms = [], load_study(CONFIG).platforms
    for path in sorted((CONFIG / "platforms").glob("*.yaml")):
        directory = PROFILES / f"slurm_{path.stem}"
        try:
            described = lookup("platform", path.stem, platforms)
            files = files_of(path.stem, described) if described.scheduler == "slurm" else {}
            whole = all((directory / name).exists() for name in files)
            if not files or (whole and is_edited(directory, path.stem)):
                continue
            directory.mkdir(exist_ok=True)
            for name, text in files.items():
                there = directory / name
                if not there.exists() or there.read_text(encoding="utf-8") != text:
                    there.write_text(text, encoding="utf-8")
                    print(f"{there} written")
        except ConfigError as error:
            mistakes.append(str(error))
        except (OSError, ValueError, AttributeError) as error:
            mistakes.append(f"{directory}: {error}; it is left as it is")
    return mistakes


def link(profile: Path, directory: Path) -> str:
    """Link a profile into a directory; returns what is wrong, "" where it is there."""
    target = directory / profile.name
    if target.is_symlink() and not target.exists():
        target.unlink()  # it pointed to a checkout that is gone
    if target.is_symlink() or target.exists():
        if target.resolve() != profile.resolve():
            return (
                f"{target} exists and is not this repository's: move it away, or name the profile "
                f"by its path, as in --profile {profile}"
            )
        print(f"{target} is registered")
        return ""
    target.symlink_to(profile.resolve())
    print(f"{target} registered")
    return ""


def main() -> int:
    """Returns the exit code. A profile of the same name that is not ours is left alone."""
    try:
        problems = make_missing()
        home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        directory = home / "snakemake"
        directory.mkdir(parents=True, exist_ok=True)
        profiles = sorted(path.parent for path in PROFILES.glob("*/config.yaml"))
        problems += [problem for profile in profiles if (problem := link(profile, directory))]
    except (OSError, RuntimeError) as error:  # Path.home() raises the latter
        problems = [
            f"{error}; links to profiles are made below XDG_CONFIG_HOME or HOME: set HOME or "
            "XDG_CONFIG_HOME to a directory that you may write, or name a profile by its path, as "
            f"in --profile {PROFILES / 'slurm_h200'}"
        ]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
