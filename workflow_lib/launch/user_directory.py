"""The directory that all waiting processes of a user on this machine share."""

from __future__ import annotations

import os
import zlib
from pathlib import Path


def user_directory() -> Path:
    """This user's directory for the cluster that the Slurm commands now talk to, which may not
    exist yet.
    """
    cluster = "\0".join(os.environ.get(name, "") for name in ("SLURM_CONF", "SLURM_CLUSTERS"))
    digest = zlib.crc32(cluster.encode("utf-8", "surrogateescape"))
    temporary = os.environ.get("TMPDIR") or "/tmp"
    return Path(temporary) / f"triptych-{os.getuid()}-{digest:08x}"
