"""Installs a file of pinned versions with pip, and shows how far it is.

usage: python envs/install.py envs/local.txt
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

#: of a failure, so many of pip's last lines are shown
_LINES = 20


def pinned(path: Path) -> set[str]:
    """The packages that a file of versions names, with those of the files that it includes."""
    found: set[str] = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        if included := re.match(r"(?:-r|--requirement)\s+(\S+)", line):
            found |= pinned(path.parent / included[1])
        elif named := re.match(r"[A-Za-z0-9][\w.-]*", line):
            found.add(named[0].lower().replace("_", "-"))
    return found


def said_of(line: str, seen: set[str], count: int) -> str | None:
    """What a line of pip's means to who waits; ``seen`` are the packages found so far."""
    if named := re.match(r"(?:Collecting|Requirement already satisfied:) ([\w.-]+)", line):
        seen.add(named[1].lower())
        return f"{min(len(seen), count)} of {count} packages found: {named[1]}"
    if size := re.match(r"\s*Downloading (\S+?)(?:-\d\S*)? \((.+)\)", line):
        return f"{min(len(seen), count)} of {count} packages found: {size[1]}, {size[2]}"
    if line.startswith("Installing collected packages"):
        return f"unpacking {count} packages, a minute or two"
    return None


def main(path: Path) -> int:
    """Install ``path``; returns pip's exit code, after its last lines where it failed."""
    count = len(pinned(path))
    terminal = sys.stdout.isatty()
    seen: set[str] = set()
    lines: list[str] = []
    print(f"installing the {count} packages of {path} into {sys.prefix}", flush=True)
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    with subprocess.Popen(
        [*pip, "--progress-bar", "off", "--requirement", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            lines.append(line)
            said = said_of(line, seen, count)
            if said and terminal:
                print(f"\r  {said[:76]}\033[K", end="", flush=True)
            elif said and (len(seen) % 25 == 0 if line.startswith("Coll") else line[0] == "I"):
                print(f"  {said}", flush=True)
    if terminal:
        print("\r\033[K", end="", flush=True)
    if child.returncode:
        print(f"pip could not install {path}:", file=sys.stderr)
        sys.stderr.writelines(lines[-_LINES:])
        print(
            "where no index of packages can be reached, docs/how-to/gpu-machine-without-network.md "
            "says how to bring them",
            file=sys.stderr,
        )
    else:
        print(f"done: the {count} packages of {path} are in {sys.prefix}", flush=True)
    return child.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
