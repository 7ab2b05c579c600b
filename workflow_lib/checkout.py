"""Where the clone of the repository is, whose Snakefile and rules are the workflow.

An installed package has neither: what needs them looks for a clone, and says where there is none.
"""

from __future__ import annotations

from pathlib import Path


class CheckoutError(ValueError):
    """A command needs a clone of the repository, and there is none; the message says what to do."""


def of_package() -> Path | None:
    """The clone that this package is part of; None where it was installed without its clone."""
    return _if_clone(Path(__file__).parents[1])


def here() -> Path:
    """The working directory, which is a clone. Raises CheckoutError where it is none."""
    found = _if_clone(Path.cwd())
    if found is None:
        raise CheckoutError(
            f"{Path.cwd()} has no workflow/Snakefile with rules/ and profiles/: this command needs "
            "a clone of the repository; change to the clone and give the command again"
        )
    return found


def of_package_or_here() -> Path:
    """The package's clone, else the working directory. Raises as :func:`here`."""
    return of_package() or here()


def _if_clone(directory: Path) -> Path | None:
    whole = (directory / "workflow" / "Snakefile").is_file() and all(
        (directory / name).is_dir() for name in ("rules", "profiles")
    )
    return directory if whole else None
