"""Runs a command with another Slurm than this machine's: that of another Debian.

    python -m tests.slurm.debian 24.11 -- python -m pytest tests/slurm

Slurm's daemons, commands and libraries, MariaDB, munge, the shell and the C library are those of
that Debian, in a root that ``debootstrap`` installs once. Python, the pinned packages and the
checkout are this machine's, at the same paths. The command has namespaces of its own: mounts,
processes and network. What it writes into the root is gone with it; /var/tmp, where faults leave
what ended wrong, and the checkout are the machine's own.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.slurm import namespaces

#: Slurm's version → the root that has it: a Debian, and what is added to it
RELEASES = {"22.05": "bookworm", "24.11": "trixie", "24.11-apptainer": "trixie-apptainer"}
#: where roots lie: root alone writes there
ROOTS = Path("/var/lib/triptych-slurm")
_PACKAGES = ("slurm-wlm", "slurmdbd", "mariadb-server", "munge", "bindfs", "iproute2", "procps")
_PACKAGES += ("make",)
#: what the machine's Python and tests take from a Debian, beyond what every root has
_PACKAGES += ("ca-certificates", "libffi8", "libsqlite3-0", "libbz2-1.0", "liblzma5", "libssl3")
#: Only Debian's unstable has apptainer. It comes from there, and what it needs from the release.
_UNSTABLE = {
    "etc/apt/sources.list.d/sid.list": "deb http://deb.debian.org/debian sid main\n",
    "etc/apt/preferences.d/sid": "Package: *\nPin: release n=sid\nPin-Priority: 100\n",
}
ROOT = Path(__file__).parent.parent.parent
_INSIDE = "TRIPTYCH_DEBIAN_INSIDE"
#: it lies where the other Debian's programs have to be
PYTHON_IS_SYSTEMS = Path(sys.base_prefix) == Path("/usr")


class RootError(Exception):
    """There is no such root, and none can be made; the message says why."""


def root_of(version: str) -> Path:
    """Where the root with that Slurm lies; one of other packages is another root."""
    packages = hashlib.sha256(" ".join(_PACKAGES).encode()).hexdigest()[:8]
    return ROOTS / f"{RELEASES[version]}-{packages}"


def install(version: str) -> Path:
    """The root with that Slurm, installed where it is not yet. Raises RootError."""
    name = RELEASES[version]
    release, _, added = name.partition("-")
    made = root_of(version)
    if made.exists():
        return made
    program = shutil.which("debootstrap", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        raise RootError("no debootstrap: as root on Debian or Ubuntu, apt-get install debootstrap")
    ROOTS.mkdir(mode=0o755, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=ROOTS))
    unfinished.chmod(0o755)
    print(f"installing Debian {release}, with Slurm {version}, below {ROOTS}", file=sys.stderr)
    policy = str(unfinished / "usr" / "sbin" / "policy-rc.d")
    apt = ["chroot", str(unfinished), "apt-get", "-q", "-y", "--no-install-recommends"]
    log = ROOTS / f"{name}.log"
    with log.open("wb") as stream:
        for command in (
            [program, "--variant=minbase", release, str(unfinished)],
            # Packages must not start daemons: the tests start their own.
            ["sh", "-c", 'printf "#!/bin/sh\\nexit 101\\n" >"$0" && chmod 755 "$0"', policy],
            [*apt, "install", *_PACKAGES],
            *(_add(unfinished, apt) if added else ()),
        ):
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=dict(os.environ) | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
                check=False,
            )
            if done.returncode:
                shutil.rmtree(unfinished)
                raise RootError(f"{command[0]} failed with {done.returncode}; see {log}")
    unfinished.rename(made)
    return made


def _add(root: Path, apt: Sequence[str]) -> list[list[str]]:
    """The commands that add apptainer to a root."""
    write = ["sh", "-c", 'printf "%s" "$1" >"$0"']
    sources = [[*write, str(root / name), text] for name, text in _UNSTABLE.items()]
    # Unstable's index is valid for a week, and mirrors may be older.
    update = [*apt, "-o", "Acquire::Check-Valid-Until=false", "update"]
    # A machine's root may lack a capability, and apptainer hands on all or none.
    none = ["sed", "-i", "s/^root default capabilities = .*/root default capabilities = no/"]
    configuration = str(root / "etc" / "apptainer" / "apptainer.conf")
    return [*sources, update, [*apt, "install", "apptainer"], [*none, configuration]]


def run(version: str, command: Sequence[str]) -> int:
    """Run ``command`` there, in the directory of this process; returns its exit code."""
    if PYTHON_IS_SYSTEMS:
        raise RootError(
            "this Python is Debian's own, and would bring all of /usr with it: use another one, of "
            "pyenv for instance"
        )
    root = install(version)
    private = Path(tempfile.mkdtemp(prefix=".run-", dir=ROOTS))
    unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
    inside = [sys.executable, "-m", "tests.slurm.debian", version, "--", *command]
    try:
        return subprocess.run(
            [*unshare, *namespaces.as_first_process(inside)],
            env=dict(os.environ) | {_INSIDE: f"{root}:{private}"},
            check=False,
        ).returncode
    finally:
        shutil.rmtree(private)


def enter(root: Path, private: Path, command: Sequence[str]) -> None:
    """Within the namespaces: furnish the root, and become the command there."""
    here = Path.cwd()
    merged = private / "root"
    for name in ("root", "changes", "work"):
        (private / name).mkdir()
    layers = f"lowerdir={root},upperdir={private}/changes,workdir={private}/work"
    _mount("-t", "overlay", "-o", layers, "overlay", str(merged))
    _mount("-t", "proc", "proc", f"{merged}/proc")
    _mount("-t", "tmpfs", "-o", "mode=755", "none", f"{merged}/run")
    for path in ("/sys", "/dev", "/var/tmp", *of_python(), str(ROOT)):
        (merged / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        _mount("--rbind", path, f"{merged}{path}")
    own = socket.gethostname().partition(".")[0]
    (merged / "etc" / "hosts").write_text(f"127.0.0.1 localhost\n127.0.0.1 {own}\n")
    namespaces.bring_up_network()
    # The machine's own root goes: apptainer does not run in a mere chroot.
    left = merged / "machine"
    left.mkdir()
    subprocess.run(["pivot_root", str(merged), str(left)], check=True)
    os.chdir(here)
    subprocess.run(["umount", "--lazy", "/machine"], check=True)
    Path("/machine").rmdir()
    kept = {name: value for name, value in os.environ.items() if name != _INSIDE}
    # The root has no Python of its own.
    path = f"{os.environ['PATH']}{os.pathsep}{sys.base_prefix}/bin"
    environment = kept | {"LANG": "C.UTF-8", "TMPDIR": "/tmp", "PATH": path}
    os.execvpe(command[0], list(command), environment)


def of_python() -> list[str]:
    """Directories that hold this Python and the packages that it finds."""
    environment = ROOT / ".venv"
    found = dict.fromkeys([sys.base_prefix, str(Path(sys.prefix).resolve())])
    if environment.is_symlink():
        found[str(environment.resolve())] = None
    return list(found)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def main() -> int:
    """Returns the command's exit code; 1 where there is no such root."""
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.debian", description=__doc__)
    parser.add_argument("version", choices=RELEASES)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    inside = os.environ.get(_INSIDE)
    if inside is not None:
        root, _, private = inside.partition(":")
        enter(Path(root), Path(private), options.command)
    if os.geteuid() != 0:
        print("only root can enter another root: run this as root", file=sys.stderr)
        return 1
    try:
        return run(options.version, options.command)
    except RootError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
