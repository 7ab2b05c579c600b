"""Links this repository's profiles into the user's Snakemake configuration directory, so that
``snakemake --profile slurm_h200`` finds them by name.
"""

import os
import sys
from pathlib import Path


def main() -> int:
    """Returns the exit code. A profile of the same name that is not ours is left alone."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    directory = home / "snakemake"
    directory.mkdir(parents=True, exist_ok=True)
    problems = 0
    for profile in sorted(path.parent for path in Path(__file__).parent.glob("*/config.yaml")):
        link = directory / profile.name
        if link.is_symlink() and not link.exists():
            link.unlink()  # it pointed to a checkout that is gone
        if link.is_symlink() or link.exists():
            if link.resolve() == profile.resolve():
                print(f"{link} is registered")
                continue
            print(
                f"{link} exists and is not this repository's: move it away, or name the profile by "
                f"its path, as in --profile {profile}",
                file=sys.stderr,
            )
            problems = 1
            continue
        link.symlink_to(profile.resolve())
        print(f"{link} registered")
    return problems


if __name__ == "__main__":
    sys.exit(main())
