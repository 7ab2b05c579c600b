"""A real Slurm cluster on one machine, to test against and to throw away.

Slurm can emulate many nodes on one host: one ``slurmd`` a node, each with a port of its own, and
GPUs that are counted but not there.  Scheduling, accounting, limits and refusals are the real ones.

    munged ── authenticates everybody
    mariadbd ── slurmdbd ── slurmctld ──┬── slurmd h200-1, h200-2    8 GPUs each, partition h200
     (socket)   accounting   scheduler  ├── slurmd h100-1, h100-2    8 GPUs each, partition h100
                                        ├── slurmd mi250-1           8 GPUs,      partition mi250
                                        └── slurmd cpu-1             no GPU,      partition cpu

Usage, as root, with the packages that ``install.sh`` beside this file installs:

    python3 tests/slurm/cluster.py start
    python3 tests/slurm/cluster.py status
    python3 tests/slurm/cluster.py stop

Everything lives in one directory, except what Slurm looks up elsewhere: a line in ``/etc/hosts``
(the nodes' names must resolve), a copy of the configuration in ``/etc/slurm``, and munge's socket
in ``/run/munge``.  ``stop`` removes all of it.
"""

import argparse
import fcntl
import os
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ETC_HOSTS = Path("/etc/hosts")
ETC_SLURM = Path("/etc/slurm")
MUNGE_SOCKET = Path("/run/munge/munge.socket.2")  # slurmdbd's clients ignore any other
PROGRAMS = ("munged", "mariadbd", "mariadb-install-db", "slurmdbd", "slurmctld", "slurmd", "sbatch")

CLUSTER_NAME = "triptych"
ACCOUNT = "research"
CONTROLLER_PORT = 26817  # not Slurm's own 6817: a real cluster's login node may be this machine
DATABASE_PORT = 26819
MARKER = "# Written by Triptych's throwaway Slurm cluster in "
FOLDER_MARK = ".triptych"  # in a folder that the cluster made outside its directory
SLURMS = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SINFO_")
DAEMON_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ClusterError(Exception):
    """The cluster cannot be started or stopped; the message says why and what to do."""


@dataclass(frozen=True)
class Node:
    """One emulated node: a slurmd of its own, and a partition of the same name as its hardware."""

    name: str
    partition: str
    port: int
    gpus: int


NODES = (
    Node("h200-1", "h200", 26821, gpus=8),
    Node("h200-2", "h200", 26822, gpus=8),
    Node("h100-1", "h100", 26823, gpus=8),
    Node("h100-2", "h100", 26824, gpus=8),
    Node("mi250-1", "mi250", 26825, gpus=8),
    Node("cpu-1", "cpu", 26826, gpus=0),
)
PARTITIONS = tuple(dict.fromkeys(node.partition for node in NODES))
DEFAULT_PARTITION = "cpu"

# Far more than the machine has: config_overrides makes Slurm believe the file.
SLURM_CONF = """\
ClusterName={cluster}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
MpiDefault=none
MailProg=/usr/bin/true
MaxJobCount=10000

SlurmctldPidFile={directory}/run/slurmctld.pid
SlurmctldLogFile={directory}/log/slurmctld.log
SlurmctldSyslogDebug=quiet
StateSaveLocation={directory}/state
SlurmdPidFile={directory}/run/%n.pid
SlurmdLogFile={directory}/log/%n.log
SlurmdSyslogDebug=quiet
SlurmdSpoolDir={directory}/spool/%n

# No systemd, no cgroups: this also works in a container.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=5
SlurmdParameters=config_overrides
TreeWidth=64

SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
EnforcePartLimits=ALL
ReturnToService=2
KillWait=5
InactiveLimit=60
MinJobAge=300
MessageTimeout=30
SlurmdTimeout=60

AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={database_port}
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu
GresTypes=gpu

"""
NODE_LINE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} Sockets=2"
    " CoresPerSocket=64 ThreadsPerCore=1 RealMemory=1000000 Feature={partition}{gres} State=UNKNOWN"
)
PARTITION_LINE = (
    "PartitionName={name} Nodes={nodes} Default={default} State=UP"
    " DefaultTime=00:10:00 MaxTime=2-00:00:00 DefMemPerCPU=4000"
)
_DATABASE = "slurm_acct_db"
SLURMDBD_CONF = f"""\
AuthType=auth/munge
SlurmUser=root
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={{database_port}}
PidFile={{directory}}/run/slurmdbd.pid
LogFile={{directory}}/log/slurmdbd.log
DebugLevelSyslog=quiet
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc={_DATABASE}
"""


def slurm_conf(directory: Path, host: str, settings: Mapping[str, str] | None = None) -> str:
    """Return slurm.conf of the cluster in ``directory`` on this ``host``, some settings changed."""
    lines = [
        NODE_LINE.format(
            name=node.name,
            host=host,
            port=node.port,
            partition=node.partition,
            gres=f" Gres=gpu:{node.partition}:{node.gpus}" if node.gpus else "",
        )
        for node in NODES
    ]
    for partition in PARTITIONS:
        nodes = ",".join(node.name for node in NODES if node.partition == partition)
        default = "YES" if partition == DEFAULT_PARTITION else "NO"
        lines.append(PARTITION_LINE.format(name=partition, nodes=nodes, default=default))
    head = SLURM_CONF.format(
        cluster=CLUSTER_NAME,
        host=host,
        directory=directory,
        controller_port=CONTROLLER_PORT,
        database_port=DATABASE_PORT,
    )
    for key, value in (settings or {}).items():
        head = re.sub(rf"^{key}=.*\n", "", head, flags=re.MULTILINE) + f"{key}={value}\n"
    return head + "\n".join(lines) + "\n"


def gres_conf(directory: Path) -> str:
    """Return gres.conf: eight device files for each node that has GPUs."""
    lines = [
        f"NodeName={node.name} Name=gpu Type={node.partition}"
        f" File={directory}/dev/gpu[0-{node.gpus - 1}]"
        + (" Flags=amd_gpu_env" if node.partition.startswith("mi") else " Flags=nvidia_gpu_env")
        for node in NODES
        if node.gpus
    ]
    return "\n".join(lines) + "\n"


class Cluster:
    """The cluster whose files are in one directory; at most one runs on a machine."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        """Name the cluster in ``directory``; nothing is started or written yet.

        ``settings`` are lines of slurm.conf that shall be others than here.
        """
        self.directory = directory.parent.resolve() / directory.name  # a link there is refused
        self._settings = settings
        self.conf = self.directory / "slurm.conf"
        self._mysql_socket = self.directory / "run" / "mysql.sock"
        self._foreign_munged = self.directory / "foreign-munged"  # exists if munged is not ours
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """This process's variables, less those of any other Slurm, and with this one's address."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(SLURMS)}
        return {**kept, "SLURM_CONF": str(self.conf)}

    def run(
        self, *argv: str, timeout: float = 60, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a Slurm command against this cluster and return what it printed.

        Raises ClusterError with the command's own message if it fails and ``check`` is set.
        """
        return _run(argv, self.environment, timeout, check=check)

    # ------------------------------------------------------------------ start, stop, status

    def start(self) -> bool:
        """Start the cluster; return False if it was up already.

        Leftovers of a cluster that crashed are removed first.  If anything fails, what was started
        is stopped again and ClusterError names the daemon and shows the end of its log.
        """
        with _exclusive():
            _refuse_without_prerequisites()
            self._refuse_directory()
            self._refuse_other_clusters()
            if self.is_up():
                return False
            self._remove()
            try:
                self._write_files()
                self._start_daemons()
            except BaseException:  # also on Ctrl-C: never leave half a cluster
                self._remove()
                raise
            return True

    def stop(self) -> bool:
        """End every job and daemon, and remove every trace; return False if there was none."""
        if os.geteuid() != 0:
            raise ClusterError("only root can stop the cluster, as only root can start it")
        with _exclusive():
            return self._remove()

    def is_up(self) -> bool:
        """Whether every daemon of this cluster runs and the controller answers.

        A node that a job or a test has brought down does not count: it is not for ``start`` to
        end the others' jobs over it.
        """
        daemons_run = all(self._pid(name) for name in self._daemons())
        return daemons_run and len(self.node_states()) == len(NODES)

    def node_states(self) -> dict[str, str]:
        """Return each node's state as sinfo calls it; empty if the controller does not answer."""
        if not self.conf.exists():
            return {}
        answer = self.run("sinfo", "--noheader", "--Node", "--format=%N %T", check=False)
        return dict(line.split() for line in answer.stdout.splitlines())

    def daemon_states(self) -> dict[str, str]:
        """Return ``running`` with the process id, or ``not running``, for each daemon."""
        pids = {name: self._pid(name) for name in self._daemons()}
        return {n: f"running, pid {pid}" if pid else "not running" for n, pid in pids.items()}

    # ------------------------------------------------------------------ faults

    def kill(self, name: str) -> None:
        """End one daemon as a crash would; jobs and the other daemons go on."""
        if pid := self._pid(name):
            _end([pid], signal.SIGKILL)

    def revive(self, name: str) -> None:
        """Start a daemon that was killed, and wait until it answers. Raises ClusterError."""
        answers: dict[str, Callable[[], bool]] = {
            "slurmdbd": self._accounting_answers,
            "slurmctld": lambda: _succeeds(["sinfo"], self.environment),
        }
        self._start(name, answers.get(name, lambda: name in self.node_states()))

    # ------------------------------------------------------------------ files

    def _refuse_directory(self) -> None:
        """Raise ClusterError if the directory cannot hold the cluster or holds something else."""
        if not re.fullmatch(r"[\w./-]{1,50}", str(self.directory)):
            raise ClusterError(
                f"{self.directory} cannot hold the cluster: sockets in it allow 50 characters, and "
                "slurm.conf only letters, digits and . / _ -; name another --directory"
            )
        if why := _why_open_to_others(self.directory):
            raise ClusterError(
                f"{why}: root's daemons would do what somebody else writes there; name a "
                "--directory that only root can write to, or remove it"
            )
        if self.directory.exists() and any(self.directory.iterdir()) and not self._owns_directory():
            raise ClusterError(
                f"{self.directory} holds files that this cluster did not write; "
                "name another --directory"
            )

    def _refuse_other_clusters(self) -> None:
        """Raise ClusterError if the machine belongs to another cluster, real or like this one.

        What a cluster like this one left behind when it crashed is cleared away instead.
        """
        for name in ("slurm.conf", "gres.conf"):
            file = ETC_SLURM / name
            owner = _owner(file)
            if owner is None and file.exists():
                raise ClusterError(
                    f"{file} belongs to another Slurm installation and is left alone; "
                    "use a machine that is not part of a cluster"
                )
            if owner in (None, self.directory):
                continue
            other = Cluster(owner)
            if other.is_up():
                raise ClusterError(
                    f"a cluster is already up in {owner}; use that one, or stop it with "
                    f"'cluster.py stop --directory {owner}'"
                )
            other._remove()

    def _owns_directory(self) -> bool:
        return _owner(self.conf) == self.directory

    def _write_files(self) -> None:
        """Lay out the directory, and what Slurm looks up outside it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        marker = f"{MARKER}{self.directory}\n"
        slurm = marker + slurm_conf(
            self.directory, socket.gethostname().partition(".")[0], self._settings
        )
        gres = marker + gres_conf(self.directory)
        self.conf.write_text(slurm)  # first: it marks the directory as ours
        self.directory.chmod(0o755)
        for name in ("dev", "log", "mysql", "pids", "run", "state", "spool"):
            (self.directory / name).mkdir(mode=0o755)
        for node in NODES:
            (self.directory / "spool" / node.name).mkdir()
        for index in range(max(node.gpus for node in NODES)):
            # A GPU must be a character device; Slurm only ever looks at its number.
            (self.directory / "dev" / f"gpu{index}").symlink_to("/dev/null")
        (self.directory / "gres.conf").write_text(gres)
        hidden = (self._settings or {}).get("PrivateData", "")  # it has a file of its own
        database = self.directory / "slurmdbd.conf"
        database.touch(mode=0o600)  # slurmdbd refuses a file that others can read
        database.write_text(
            SLURMDBD_CONF.format(directory=self.directory, database_port=DATABASE_PORT)
            + f"PrivateData={hidden}\n" * bool(hidden)
        )
        key = self.directory / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        self._make_outside(ETC_SLURM)
        (ETC_SLURM / "slurm.conf").write_text(slurm)
        (ETC_SLURM / "gres.conf").write_text(gres)
        names = " ".join(node.name for node in NODES)
        hosts = ETC_HOSTS.read_text()
        separator = "" if hosts.endswith("\n") or not hosts else "\n"
        _write_over(ETC_HOSTS, f"{hosts}{separator}127.0.0.1 {names} {marker}")

    def _make_outside(self, folder: Path) -> None:
        """Make a folder outside the directory, and mark it as ours to remove."""
        if not folder.exists():
            folder.mkdir(mode=0o755)
            (folder / FOLDER_MARK).write_text(f"{MARKER}{self.directory}\n")

    def _remove_files(self) -> None:
        """Remove what this cluster wrote, and nothing else."""
        hosts = ETC_HOSTS.read_text()
        ours = f"{MARKER}{self.directory}\n"
        kept = "".join(line for line in hosts.splitlines(keepends=True) if not line.endswith(ours))
        if kept != hosts:
            _write_over(ETC_HOSTS, kept)
        if self._owns_directory() and not self._foreign_munged.exists():
            for left in (MUNGE_SOCKET, MUNGE_SOCKET.with_name(f"{MUNGE_SOCKET.name}.lock")):
                left.unlink(missing_ok=True)  # a munged that was killed leaves them
        for name in ("slurm.conf", "gres.conf"):
            if _owner(ETC_SLURM / name) == self.directory:
                (ETC_SLURM / name).unlink()
        for folder in (ETC_SLURM, MUNGE_SOCKET.parent):
            if _owner(folder / FOLDER_MARK) == self.directory:
                (folder / FOLDER_MARK).unlink()
                if not any(folder.iterdir()):
                    folder.rmdir()
        if self._owns_directory():
            shutil.rmtree(self.directory)

    # ------------------------------------------------------------------ daemons

    def _daemons(self) -> dict[str, list[str]]:
        """Return the command of each daemon that this cluster starts, in order of starting.

        All run in the foreground, so that each one's process id is known.
        """
        commands = {
            "munged": [
                "munged",
                "--foreground",
                f"--key-file={self.directory}/munge.key",
                f"--socket={MUNGE_SOCKET}",
                f"--pid-file={self.directory}/run/munged.pid",
                f"--log-file={self.directory}/log/munged.log",
                f"--seed-file={self.directory}/run/munge.seed",
                "--force",  # only warn when a parent directory, as /tmp, is open to all
            ],
            "mariadbd": [
                "mariadbd",
                *self._mysql_options(),
                f"--socket={self._mysql_socket}",
                f"--pid-file={self.directory}/run/mariadbd.pid",
                "--skip-networking",
            ],
            "slurmdbd": ["slurmdbd", "-D"],
            "slurmctld": ["slurmctld", "-D", "-f", str(self.conf)],
            **{
                node.name: ["slurmd", "-D", "-N", node.name, "-f", str(self.conf)] for node in NODES
            },
        }
        if self._foreign_munged.exists():
            del commands["munged"]
        return commands

    def _mysql_options(self) -> list[str]:
        return [
            "--no-defaults",  # never the system database's files
            f"--datadir={self.directory}/mysql",
            "--user=root",
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=64M",
            "--innodb-lock-wait-timeout=900",  # slurmdbd asks for it
            "--innodb-flush-log-at-trx-commit=0",
        ]

    def _start_daemons(self) -> None:
        """Start each daemon once the one it needs answers, then wait for the nodes."""
        if _munge_answers():
            self._foreign_munged.touch()
        else:
            self._make_outside(MUNGE_SOCKET.parent)
            self._start("munged", _munge_answers)
        self._install_database()
        admin = ["mariadb-admin", "--no-defaults", f"--socket={self._mysql_socket}"]
        self._start("mariadbd", lambda: _succeeds([*admin, "ping"], self.environment))
        # slurmdbd would make it after a connection that fails. With libmariadb 11.8.9 no query
        # after such a connection has an answer: the library's limit of columns is 0 then.
        _run([*admin, "create", _DATABASE], self.environment, timeout=120)
        self._start("slurmdbd", self._accounting_answers)
        self._add_account()
        self._start("slurmctld", lambda: _succeeds(["sinfo"], self.environment))
        for node in NODES:
            self._spawn(node.name)
        for node in NODES:
            self._wait(node.name, partial(self._is_idle, node.name))
        self._wait("slurmdbd", lambda: _succeeds(["sacct"], self.environment))
        for name in self._daemons():
            if self._pid(name) is None:  # something else answered in its place
                raise ClusterError(f"{name} ended as it started.\n{self._log_tail(name)}")

    def _install_database(self) -> None:
        command = ["mariadb-install-db", *self._mysql_options(), "--skip-test-db"]
        _run([*command, "--skip-name-resolve"], self.environment, timeout=120)

    def _is_idle(self, name: str) -> bool:
        return self.node_states().get(name) == "idle"

    def _accounting_answers(self) -> bool:
        return _succeeds(["sacctmgr", "--noheader", "show", "cluster"], self.environment)

    def _add_account(self) -> None:
        """Register the cluster, the account and root; slurmctld refuses to start without."""
        for request in (
            ["add", "cluster", CLUSTER_NAME],
            ["add", "account", ACCOUNT, f"Cluster={CLUSTER_NAME}", "Description=Tests"],
            ["modify", "account", ACCOUNT, "set", "QOS=normal", "DefaultQOS=normal"],
            ["add", "user", "root", f"Account={ACCOUNT}"],
            ["modify", "user", "root", "set", f"DefaultAccount={ACCOUNT}"],
        ):
            self.run("sacctmgr", "--immediate", *request)

    def _start(self, name: str, answers: Callable[[], bool]) -> None:
        self._spawn(name)
        self._wait(name, answers)

    def _spawn(self, name: str) -> None:
        command = self._daemons()[name]
        environment = {
            "PATH": DAEMON_PATH,
            "LANG": "C.UTF-8",
            "SLURM_CONF": str(self.conf),
            "MYSQL_UNIX_PORT": str(self._mysql_socket),  # slurmdbd has no option for it
        }
        with self._output(name).open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.directory,
                start_new_session=True,
            )
        self._children[process.pid] = process
        (self.directory / "pids" / name).write_text(str(process.pid))

    def _wait(self, name: str, answers: Callable[[], bool], limit_s: float = 60) -> None:
        """Wait until ``answers``; raise ClusterError if the daemon ends or ``limit_s`` passes."""
        deadline = time.monotonic() + limit_s
        while not answers():
            if self._pid(name) is None:
                raise ClusterError(f"{name} ended as it started.\n{self._log_tail(name)}")
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{name} did not answer within {limit_s:.0f} s.\n{self._log_tail(name)}"
                )
            time.sleep(0.1)

    def _log_tail(self, name: str) -> str:
        """Return the end of what the daemon said; the file itself is about to be removed."""
        lines = self._output(name).read_text(errors="replace").splitlines()[-15:]
        return "\n".join(["The end of its log:", *(f"    {line}" for line in lines)])

    def _output(self, name: str) -> Path:
        """Return where the daemon's output goes: also what it says before it opens its log."""
        return self.directory / "log" / f"{name}.out"

    def _pid(self, name: str) -> int | None:
        """Return the daemon's process id, or None if it does not run (or its id is stale)."""
        try:
            pid = int((self.directory / "pids" / name).read_text())
        except (FileNotFoundError, ValueError):
            return None
        if pid in self._children:
            self._children[pid].poll()  # else an ended child stays, as a zombie
        return pid if _holds_file_in(pid, self.directory) else None

    # ------------------------------------------------------------------ removal

    def _remove(self) -> bool:
        """End all and remove all that this cluster left, whatever state it is in."""
        found = self.directory in (_owner(self.conf), _owner(ETC_SLURM / "slurm.conf"))
        if found:
            if self._pid("slurmctld"):
                self._cancel_jobs()
            for names in ([node.name for node in NODES], ["slurmctld"], ["slurmdbd"]):
                _end([pid for name in names if (pid := self._pid(name))], signal.SIGTERM)
            _end(self._job_processes(), signal.SIGKILL)
            _end(self._daemon_processes(), signal.SIGTERM)
            for child in self._children.values():
                child.wait()
            self._children.clear()
        self._remove_files()
        return found

    def _daemon_processes(self) -> list[int]:
        """Return the daemons that still run, even if somebody deleted the directory under them."""
        return [
            pid
            for pid in _pids()
            if _program(pid) in PROGRAMS and _holds_file_in(pid, self.directory)
        ]

    def _cancel_jobs(self) -> None:
        """Cancel every job and give the nodes a moment to end it in good order."""
        jobs = ["squeue", "--noheader", "--format=%A"]
        listed = self.run(*jobs, check=False, timeout=20).stdout.split()
        if not listed:
            return
        self.run("scancel", "--quiet", *listed, check=False, timeout=20)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and self.run(*jobs, check=False).stdout.strip():
            time.sleep(0.2)

    def _job_processes(self) -> list[int]:
        """Return what is left of jobs: slurmstepd, and processes that a job of ours started."""
        conf = f"SLURM_CONF={self.conf}".encode()
        found = []
        for pid in _pids():
            if _program(pid) == "slurmstepd" and _holds_file_in(pid, self.directory):
                found.append(pid)
            variables = _environ(pid)
            if conf in variables and any(v.startswith(b"SLURM_JOB_ID=") for v in variables):
                found.append(pid)
        return [pid for pid in dict.fromkeys(found) if pid != os.getpid()]


# ---------------------------------------------------------------------- the machine


def missing_prerequisite() -> str | None:
    """Return why a cluster cannot be started here, and what to do about it; None if it can."""
    absent = [program for program in PROGRAMS if shutil.which(program, path=DAEMON_PATH) is None]
    if absent:
        return f"no {', '.join(absent)}; on Debian or Ubuntu run: sudo tests/slurm/install.sh"
    if os.geteuid() != 0:
        return "a Slurm cluster is started by root; run this as root, on a machine to spare"
    return None


def _refuse_without_prerequisites() -> None:
    reason = missing_prerequisite()
    if reason:
        raise ClusterError(reason)


def _write_over(path: Path, text: str) -> None:
    """Give a file of the machine another text, in place: containers mount it, it cannot be moved.

    It is cut to its length after it is written: a kill in between leaves a line twice, and never an
    empty file.
    """
    content = text.encode()
    file = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(file, content, 0)
        os.ftruncate(file, len(content))
    finally:
        os.close(file)


@contextmanager
def _exclusive() -> Iterator[None]:
    """Let one process at a time start or stop a cluster on this machine.

    The lock is on /etc/hosts, which exists and which both change: a lock file would stay behind.
    """
    with ETC_HOSTS.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _owner(file: Path) -> Path | None:
    """Return the directory of the cluster that wrote ``file``; None if it is not one of ours."""
    if not file.is_file() or _why_open_to_others(file):
        return None
    with file.open(errors="replace") as lines:
        first = lines.readline()
    return Path(first.removeprefix(MARKER).rstrip("\n")) if first.startswith(MARKER) else None


def _why_open_to_others(path: Path) -> str:
    """Why another user may have written what lies at ``path``, or may put something there; "" where
    nobody but root can.

    A directory that all may write to, as /tmp, is as good as closed for what root has made in it,
    where it has the sticky bit; not for what does not exist yet.
    """
    below_exists = False
    for each in (path, *path.parents):
        try:
            found = each.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(found.st_mode):
            return f"{each} is a link"
        if found.st_uid != 0:
            return f"{each} belongs to another user than root"
        shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if shared and not (found.st_mode & stat.S_ISVTX and below_exists):
            return f"{each} can be written to by others"
        below_exists = True
    return ""


def _run(
    argv: Sequence[str], environment: Mapping[str, str], timeout: float, *, check: bool = True
) -> subprocess.CompletedProcess[str]:
    try:
        answer = subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as error:
        if check:
            raise ClusterError(f"'{' '.join(argv)}' gave no answer in {timeout:.0f} s") from error
        return subprocess.CompletedProcess(argv, 124, "", f"no answer in {timeout:.0f} s")
    if check and answer.returncode != 0:
        said = (answer.stderr.strip() or answer.stdout.strip())[-2000:]
        raise ClusterError(f"'{' '.join(argv)}' failed with {answer.returncode}: {said}")
    return answer


def _succeeds(argv: Sequence[str], environment: Mapping[str, str]) -> bool:
    return _run(argv, environment, timeout=20, check=False).returncode == 0


def _munge_answers() -> bool:
    return MUNGE_SOCKET.exists() and _succeeds(["munge", "--no-input"], os.environ)


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _program(pid: int) -> str:
    """Return the name of the program that ``pid`` runs; empty if it has ended.

    Debian calls Slurm's programs ``slurmd-wlm`` and so on, behind links with the usual names.
    """
    try:
        return Path(f"/proc/{pid}/exe").readlink().name.removesuffix("-wlm")
    except OSError:
        return ""


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _holds_file_in(pid: int, directory: Path) -> bool:
    """Whether ``pid`` has a file under ``directory`` open, as each of its daemons has its log.

    This tells a daemon of ours from a process that got the same id later, whatever its name.
    """
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for link in links:
        try:
            if link.readlink().is_relative_to(directory):
                return True
        except OSError:
            continue  # closed meanwhile
    return False


def _runs(pid: int) -> bool:
    """Whether ``pid`` still runs; an ended process that nobody has waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _end(pids: Sequence[int], first: signal.Signals, limit_s: float = 5) -> None:
    """Signal the processes, wait for them to end, and kill those that take over ``limit_s``."""
    for attempt in (first, signal.SIGKILL):
        running = [pid for pid in pids if _runs(pid)]
        for pid in running:
            try:
                os.kill(pid, attempt)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and any(_runs(pid) for pid in running):
            time.sleep(0.05)


# ---------------------------------------------------------------------- the command line


def _start(cluster: Cluster) -> int:
    began = time.monotonic()
    if cluster.start():
        print(f"The cluster is up after {time.monotonic() - began:.0f} s, in {cluster.directory}.")
    else:
        print(f"The cluster is already up, in {cluster.directory}.")
    print(f"Use it with:  export SLURM_CONF={cluster.conf}")
    print(f"Partitions {', '.join(PARTITIONS)}; account {ACCOUNT}; QoS normal.")
    return 0


def _stop(cluster: Cluster) -> int:
    stopped = cluster.stop()
    print("The cluster is stopped." if stopped else f"There is no cluster in {cluster.directory}.")
    return 0


def _status(cluster: Cluster) -> int:
    for name, state in cluster.daemon_states().items():
        print(f"{name:10} {state}")
    for name, state in cluster.node_states().items():
        print(f"{name:10} {state}")
    return 0 if cluster.is_up() else 1


def main() -> int:
    """Run one command of the command line and return its exit status."""
    parser = argparse.ArgumentParser(description="A throwaway Slurm cluster on this machine.")
    commands = {"start": _start, "stop": _stop, "status": _status}
    parser.add_argument("command", choices=commands)
    parser.add_argument(
        "--directory",
        type=Path,
        default=default_directory(),
        help="where it keeps its files (default: %(default)s)",
    )
    arguments = parser.parse_args()
    try:
        return commands[arguments.command](Cluster(arguments.directory))
    except (ClusterError, OSError) as error:
        print(f"cluster.py: {error}", file=sys.stderr)
        return 1


def default_directory() -> Path:
    """Return where the cluster keeps its files unless told otherwise: root alone writes there."""
    return Path("/run/triptych-slurm")


if __name__ == "__main__":
    sys.exit(main())
