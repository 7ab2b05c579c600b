"""Checks in a separate process that parquet files can be read.

Some damaged files make polars ask for more memory than there is, which ends the process and cannot
be caught. ``python -m workflow_lib.analysis.parquet_check BYTES FILE …`` reads the files first, and
ends in place of the caller.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from workflow_lib import commands
from workflow_lib.records import bounds
from workflow_lib.records.reading import RecordError

_UNREADABLE = 3
#: each thread of polars takes address space, so there is one; and the package is found from any
#: working directory
_ENVIRONMENT = {
    "POLARS_MAX_THREADS": "1",
    "PYTHONPATH": os.pathsep.join((str(Path(__file__).parents[2]), *sys.path)),
}


def check_readable(paths: Iterable[Path]) -> None:
    """Raise RecordError for the first of these files that polars cannot read within bounds of
    memory and time. Files that do not exist are skipped; whoever reads them reports that."""
    there = [str(path.absolute()) for path in paths if path.is_file()]
    if not there:
        return
    command = [sys.executable, "-m", "workflow_lib.analysis.parquet_check"]
    command += [str(bounds.PARQUET_CHECK_BYTES.most), *there]
    try:
        done = commands.run(command, bounds.PARQUET_CHECK_S.most, os.environ | _ENVIRONMENT)
    except subprocess.TimeoutExpired:
        limit = f"{bounds.PARQUET_CHECK_S.most} s"
        raise RecordError(f"{there[0]}, or one beside it: not read within {limit}") from None
    except OSError as error:
        raise RecordError(f"{there[0]}: {error}") from None
    if done.exit_code:
        begun = done.output.splitlines()
        file = there[max(0, len(begun) - 1)]
        why = begun[-1].partition(" ")[2] if done.exit_code == _UNREADABLE and begun else ""
        why = why or "reading it takes more memory than is allowed"
        raise RecordError(f"{file}: not readable as parquet: {why}")


def _main(most_bytes: int, paths: list[str]) -> int:
    """Print a line for each file that is begun, with the reason if it is refused; return the exit
    code."""
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from workflow_lib.table_files import read_frame

    for number, path in enumerate(paths):
        print(number, end=" ", flush=True)
        try:
            read_frame(Path(path))
        except (RecordError, OSError) as error:
            print(" ".join(str(error).removeprefix(f"{path}: ").split()), flush=True)
            return _UNREADABLE
        print(flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1]), sys.argv[2:]))
