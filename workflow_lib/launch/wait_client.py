"""Hands the wait for a run over to one process that waits for all runs of a workflow.

Runs share it that share a session, an environment, a working directory and the code: it does for
each what this process would.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from workflow_lib.launch.user_directory import user_directory
from workflow_lib.safety import private_directory

#: glibc's limit on its pools of memory, of which each thread would otherwise have its own
ARENAS = "MALLOC_ARENA_MAX"
#: Waits for the exit code, and passes Ctrl-C on. Where the server dies, the job goes on, and the
#: same is asked of another one.
_WAIT = """\
trap 'echo >&3; asked=1' INT
until asked=; read -r code <&3; do
    [ "$asked" ] || exec "$@"
done
exit "$code"
"""
_BACKLOG = 1024


def hand_over(directory: Path, scheduler: str, attempts: int) -> None:
    """Become a small shell that waits for the run's exit code.

    Returns only where no server can be had, after which this process can do its work itself; so it
    does once ``attempts`` is 0. Raises PermissionError where others can write the directory of the
    server's address.
    """
    if attempts <= 0:
        return
    request = {"directory": str(directory.absolute()), "scheduler": scheduler}
    again = [sys.executable, "-m", "workflow_lib.launch", "run", request["directory"]]
    again += ["--scheduler", scheduler, "--shared", str(attempts - 1)]
    shared = private_directory(user_directory())
    try:
        server = _connected(shared / f"{_key()}.socket")
        socket.send_fds(server, [json.dumps(request).encode()], [sys.stderr.fileno()])
    except OSError:  # such as a file system without sockets: that costs memory, and nothing else
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(server.fileno(), 3)
    os.set_inheritable(3, True)  # which dup2 leaves as it is where it is 3 already
    os.execv("/bin/sh", ["sh", "-c", _WAIT, "triptych", *again])


def _connected(address: Path) -> socket.socket:
    """A connection to the server, which is started where there is none. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with (address.parent / "starting").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            connection.connect(str(address))
        except (FileNotFoundError, ConnectionRefusedError):
            address.unlink(missing_ok=True)
            _start(address)
            connection.connect(str(address))
    return connection


def _start(address: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(address))
        listener.listen(_BACKLOG)
        command = [sys.executable, "-m", "workflow_lib.launch.wait_server"]
        command += [str(listener.fileno()), str(address)]
        subprocess.Popen(
            command if ARENAS in os.environ else [*command, "alone"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={ARENAS: "1", **os.environ},
            pass_fds=(listener.fileno(),),
            process_group=0,  # Ctrl-C comes through the clients
        )


def _key() -> str:
    """Names the server that does what this process would."""
    umask = os.umask(0o077)
    os.umask(umask)
    package = Path(__file__).parent.parent
    alike = [
        *(sys.executable, str(package), str(Path.cwd()), os.getsid(0), umask),
        max(path.stat().st_mtime_ns for path in package.rglob("*.py")),
        signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        sorted(os.environ.items()),
    ]
    return hashlib.sha256(repr(alike).encode("utf-8", "surrogateescape")).hexdigest()[:16]
