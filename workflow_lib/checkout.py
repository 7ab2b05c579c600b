"""Finds the clone of the repository, which has the Snakefile and the rules.

An installed package has neither. Commands that need them look for a clone, and say if there is
none.
"""

from __future__ import annotations

import shlex
from pathlib import Path


class CheckoutError(ValueError):
    """A command needs a clone of the repository, and there is none. The message says what to do."""


def of_package() -> Path | None:
    """The clone that this package is part of; None if it was installed without one."""
    return _if_clone(Path(__file__).parents[1])


def here() -> Path:
    """The working directory, if it is a clone. Raises CheckoutError if it is not."""
    clone_here = _if_clone(Path.cwd())
    if clone_here is None:
        raise CheckoutError(
            f"{Path.cwd()} has no workflow/Snakefile with rules/ and profiles/: this command needs "
            "a clone of the repository; change to the clone and give the command again"
            + (f": cd {shlex.quote(str(clone))}" if (clone := of_package()) else "")
        )
    return clone_here


def of_package_or_here() -> Path:
    """The package's clone, else the working directory. Raises CheckoutError if neither is one."""
    return of_package() or here()


def _if_clone(directory: Path) -> Path | None:
    whole = (directory / "workflow" / "Snakefile").is_file() and all(
        (directory / name).is_dir() for name in ("rules", "profiles")
    )
    return directory if whole else None
