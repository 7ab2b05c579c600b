"""Root's cluster lives where nobody else writes: an unprivileged user could become root through the
Prolog of a slurm.conf that lies there.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.slurm import cluster
from tests.slurm.cluster import MARKER, Cluster, ClusterError, _owner, default_directory

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
NOBODY = 65534


@pytest.fixture
def closed() -> Path:
    """A directory that only root can write to, as no directory below /tmp is before it exists."""
    directory = Path("/run/triptych-test-directories")
    directory.mkdir(mode=0o755)
    yield directory
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    directory.rmdir()


def refused(directory: Path) -> str:
    with pytest.raises(ClusterError) as error:
        Cluster(directory)._refuse_directory()
    return str(error.value)


def test_a_directory_of_another_user_is_refused(closed):
    directory = closed / "slurm"
    directory.mkdir()
    (directory / "slurm.conf").write_text(f"{MARKER}{directory}\nProlog=/tmp/evil\n")
    os.chown(directory, NOBODY, NOBODY)
    assert f"{directory} belongs to another" in refused(directory)


def test_what_another_user_planted_makes_no_directory_ours(closed):
    directory = closed / "slurm"
    directory.mkdir()
    conf = directory / "slurm.conf"
    conf.write_text(f"{MARKER}{directory}\nProlog=/tmp/evil\n")
    assert _owner(conf) == directory
    os.chown(conf, NOBODY, NOBODY)
    assert _owner(conf) is None
    assert "did not write" in refused(directory)


def test_a_directory_that_others_write_to_is_refused(closed):
    directory = closed / "slurm"
    directory.mkdir()
    directory.chmod(0o775)
    assert f"{directory} can be written" in refused(directory)


def test_a_link_is_refused(closed):
    (closed / "real").mkdir()
    (closed / "slurm").symlink_to(closed / "real")
    assert "is a link" in refused(closed / "slurm")


def test_below_a_directory_that_is_open_to_all_nothing_is_made():
    """Whoever comes first would own it."""
    assert "can be written" in refused(Path("/tmp/triptych-no-such-cluster"))


def test_a_directory_of_roots_own_below_one_that_is_open_to_all_is_closed():
    with tempfile.TemporaryDirectory(dir="/tmp") as own:
        Cluster(Path(own) / "slurm")._refuse_directory()


def test_the_default_is_closed():
    Cluster(default_directory())._refuse_directory()


@pytest.mark.parametrize("text", ["127.0.0.1 localhost\n", "127.0.0.1 localhost\n127.0.0.1 n1\n"])
def test_a_kill_while_hosts_are_written_leaves_the_machines_own(tmp_path, monkeypatch, text):
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.0.1 n2\n")

    def killed(file: int, length: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "ftruncate", killed)
    with pytest.raises(KeyboardInterrupt):
        cluster._write_over(hosts, text)
    assert hosts.read_text().startswith(text)
    monkeypatch.undo()
    cluster._write_over(hosts, text)
    assert hosts.read_text() == text
