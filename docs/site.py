"""``python -m docs.site DIRECTORY``: stages the pages for mkdocs, with all files that they link to.

Pages keep their places. What is not tracked by git is not there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

CHECKOUT = Path(__file__).parents[1]
_CONFIGURATION = CHECKOUT / "docs" / "mkdocs.yml"
#: sections of the site, and the directories of their pages
_SECTIONS = {
    "How to": "docs/how-to",
    "Explanation": "docs/explanation",
    "Reference": "docs/reference",
    "Results": "docs/results",
}
#: pages before the sections
_FIRST = ("README.md", "docs/index.md", "docs/tutorial.md", "docs/artifact.md", "docs/glossary.md")
_LINK = re.compile(r'\]\(([^)#\s]+)|(?:src|srcset|href)="([^"#]+)"')


def staged(tracked: list[str]) -> set[str]:
    """The pages among the tracked files, but those of tests, and each tracked file that they link
    to."""
    pages = {name for name in tracked if name.endswith(".md") and not name.startswith("tests/")}
    linked = set()
    for page in pages:
        for match in _LINK.finditer((CHECKOUT / page).read_text(encoding="utf-8")):
            target = (CHECKOUT / page).parent / (match[1] or match[2])
            linked.add(target.resolve().relative_to(CHECKOUT).as_posix() if target.exists() else "")
    return pages | (linked & set(tracked))


def navigation(pages: set[str]) -> list[dict[str, object]]:
    """The first pages, and the sections with theirs, by title."""
    nav: list[dict[str, object]] = [{_title(page): page} for page in _FIRST]
    for section, directory in _SECTIONS.items():
        own = [page for page in pages if page.startswith(directory) and page.endswith(".md")]
        nav.append({section: [{_title(page): page} for page in sorted(own, key=_title)]})
    return nav


def _title(page: str) -> str:
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    return next(line[2:] for line in text.splitlines() if line.startswith("# ")).replace("`", "")


def main() -> None:
    """Stage the pages in the directory that is named, in place of what is there."""
    directory = Path(sys.argv[1])
    listed = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, capture_output=True, check=True)
    files = staged(listed.stdout.decode().splitlines())
    shutil.rmtree(directory, ignore_errors=True)
    for name in files:
        target = directory / "pages" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(CHECKOUT / name, target)
    nav = yaml.safe_dump({"nav": navigation(files)}, allow_unicode=True, sort_keys=False)
    configuration = _CONFIGURATION.read_text(encoding="utf-8") + nav
    (directory / "mkdocs.yml").write_text(configuration, encoding="utf-8")


if __name__ == "__main__":
    main()
