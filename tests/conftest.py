"""What tests of several parts share."""

from __future__ import annotations

import pickle
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import Cluster, default_directory, missing_prerequisite
from tests.texts import edit
from tests.wall_clock import WallClock
from workflow_lib import cells, study
from workflow_lib.study import Study, load_study
from workflow_lib.yaml_files import read_yaml

ROOT = Path(__file__).parent.parent
# A shell has what it starts in the background ignore Ctrl-C, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def yaml_read_once() -> Iterator[None]:
    """A study is read again and again, and nearly all of that is its YAML: what a file holds is
    parsed once in a process."""
    parsed: dict[bytes, bytes] = {}

    def read(path: Path) -> Any:
        content = path.read_bytes() if path.is_file() else b""
        if content not in parsed:
            plain = read_yaml(path)
            if not content:
                return plain
            parsed[content] = pickle.dumps(plain)
        return pickle.loads(parsed[content])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "read_yaml", read)
        yield


@pytest.fixture
def study_directory(tmp_path: Path) -> Path:
    """A copy of the shipped configuration that a test may edit."""
    return Path(shutil.copytree(ROOT / "config", tmp_path / "config"))


@pytest.fixture
def study_without_sweeps(study_directory: Path) -> Path:
    """The same without its sweeps, which is read soon."""
    for path in (study_directory / "sweeps").iterdir():
        path.unlink()
    return study_directory


def load_sound(directory: Path) -> Study:
    """A study of which no file has a mistake. Raises ConfigError with the first one."""
    sound = load_study(directory)
    for mistake in sound.mistakes or cells.expand_study(sound).bad.values():
        raise mistake
    return sound


@pytest.fixture(name="edit")
def edit_study(study_directory: Path):
    """Replaces text in a file of the copied configuration, which must contain it."""

    def replace(name: str, old: str, new: str) -> Path:
        edit(study_directory / name, old, new)
        return study_directory / name

    return replace


@dataclass(frozen=True)
class SessionCluster:
    """The cluster of this test session, and whether it was started for it."""

    cluster: Cluster
    started_here: bool


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[SessionCluster]:
    """Start the cluster unless it is up already, and stop it at the end if it was started here."""
    reason = missing_prerequisite()
    if reason:
        pytest.skip(f"needs a real Slurm cluster: {reason}")
    cluster = Cluster(default_directory())
    started_here = cluster.start()
    yield SessionCluster(cluster, started_here)
    if started_here:
        cluster.stop()


@pytest.fixture(scope="session")
def slurm_cluster(session_cluster: SessionCluster) -> Cluster:
    """Give a cluster that is up: run commands with ``.run(...)``, or with ``.environment``."""
    return session_cluster.cluster


@pytest.fixture
def disposable_cluster(session_cluster: SessionCluster) -> Iterator[Cluster]:
    """Give a cluster that is stopped, for a test to start and break; it is up again after."""
    if not session_cluster.started_here:
        pytest.skip("the cluster was up before these tests; others may have jobs on it")
    session_cluster.cluster.stop()
    yield session_cluster.cluster
    session_cluster.cluster.start()


@pytest.fixture
def wall_clock(tmp_path: Path) -> WallClock:
    """A clock that stands right until a test sets it."""
    directory = tmp_path / "wall-clock"
    directory.mkdir()
    return WallClock(directory)
