"""The files of a run on its cell's page: configuration, script, environment, logs and errors.

The page says so if a file is missing or cannot be read as text. A damaged record raises
RecordError, as elsewhere in the report. Paths are relative to the run's directory, so that a page
is the same wherever it is made.
Text of these files is shown without secrets or control characters, and shortened.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from workflow_lib.records import ranges
from workflow_lib.records.contract import RankRecord
from workflow_lib.records.files import read_if_there, read_json, read_record
from workflow_lib.records.outcomes import ErrorRecord, ExitRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.report.figures.cell_names import natural
from workflow_lib.report.figures.environments import flat
from workflow_lib.safety import HIDDEN, hiding, is_secret, printable

Clean = Callable[[str], str]

#: lines of a log that are shown, letters of a line, and bytes that are read from its end
LOG_LINES, _LINE_LETTERS, _END = 40, 200, 65536


def cleaning(environment: Mapping[str, str]) -> Clean:
    """Return a function that hides secrets in text, as :func:`workflow_lib.safety.hiding`, and
    spells out control characters."""
    hide = hiding(environment)

    def clean(text: str) -> str:
        text = hide(text).expandtabs(4)
        return text if text.replace("\n", "").isprintable() else printable(text)

    return clean


def clean_value(name: str, value: str, clean: Clean) -> str:
    """A value made fit to be shown, or the mark that it is hidden if its name says that it is a
    secret."""
    return HIDDEN if is_secret(name, value) else clean(value)


def tail(path: Path, clean: Clean) -> str:
    """The last lines of a log, each cut to what a line on a page holds; "" where it is empty.

    If a line was overwritten, as progress bars do, its last state is kept, as on a terminal. Bytes
    that are not UTF-8 are replaced. Raises OSError if the file cannot be read.
    """
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _END))
        text = stream.read(_END).decode("utf-8", "replace")
    if size > _END:
        # Part of a line could be part of a secret.
        text = text.partition("\n")[2] or f"(its last line is longer than {_END} bytes)"
    if not text.strip():
        return ""
    lines = text.rstrip("\n").split("\n")[-LOG_LINES:]
    return "\n".join(shortened(clean(line.rstrip("\r").rpartition("\r")[2])) for line in lines)


def shortened(line: str, letters: int = _LINE_LETTERS) -> str:
    """The first ``letters`` of a line, and how many are left out."""
    more = len(line) - letters
    return line if more <= 0 else f"{line[:letters]} … ({more} more)"


#: the most records of ranks that are listed, lines of a traceback, and letters of a message
_LISTED, _TRACEBACK_LINES, _MESSAGE_LETTERS = 8, 20, 400
#: the most logs that are shown: a job has a handful
_LOGS = 100
#: at most so many bytes of a script are shown; scripts of this workflow are shorter
_SCRIPT_BYTES = 65536

_Rank = TypeVar("_Rank", ErrorRecord, ExitRecord)
#: heading, and (key, value) of each line
Section = tuple[str, list[tuple[str, str]]]


def configuration(paths: RunPaths, clean: Clean) -> list[Section] | None:
    """``cell.json`` by section, None if the file is missing."""
    record = _object(paths.cell)
    return None if record is None else sections(record, "cell", clean)


def precisions(paths: RunPaths, clean: Clean) -> list[Section]:
    """The precisions that rank 0 found, which all ranks share; no section if it recorded none."""
    record = read_if_there(paths.rank(0), RankRecord)
    if record is None or record.precisions is None:
        return []
    return sections({"precisions, as ranks found them": asdict(record.precisions)}, "", clean)


def environment(paths: RunPaths, clean: Clean) -> list[Section] | None:
    """``environment.json`` by section, None if the file is missing."""
    record = _object(paths.environment)
    if record is None:
        return None
    moment = record.pop("recorded_unix_s", None)
    if isinstance(moment, int | float) and not ranges.problem("recorded_unix_s", moment):
        recorded = datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        record = {"recorded": recorded, **record}
    return sections(record, "run", clean)


def sections(record: Mapping[str, Any], rest: str, clean: Clean) -> list[Section]:
    """Keys and values of nested objects, with a section for each; the other values are under
    ``rest``."""
    alone = {key: value for key, value in record.items() if not isinstance(value, dict)}
    nested = {key: value for key, value in record.items() if isinstance(value, dict)}
    return [
        (clean(heading), [(clean(key), _value(key, value, clean)) for key, value in flat(of_it)])
        for heading, of_it in {rest: alone, **nested}.items()
        if of_it
    ]


def _value(key: str, value: Any, clean: Clean) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return clean_value(key, str(value), clean)


def script(paths: RunPaths, clean: Clean) -> dict[str, str]:
    """``job.sh`` as ``text``, or under ``instead`` the sentence that the page shows in
    its place."""
    return _text(paths.script, "job.sh", _whole, clean)


def logs(paths: RunPaths, clean: Clean) -> list[dict[str, str]]:
    """The ends of a run's logs, each with its ``name``, and with ``text`` or ``instead``. The log
    of training comes first. Logs of the sampler and the job are only listed if they are not empty.
    """
    training, sampler = paths.training_log, paths.logs / "telemetry.log"
    ends = [{"name": "logs/training.log", **_text(training, training.name, tail, clean)}]
    others = (path for path in paths.logs.glob("*") if path not in (training, sampler))
    for path in (sampler, *sorted(others, key=lambda path: natural(path.name))[:_LOGS]):
        if path.is_file() and path.stat().st_size:
            name = clean(f"logs/{path.name}")
            ends.append({"name": name, **_text(path, path.name, tail, clean)})
    return ends


def _text(path: Path, name: str, read: Any, clean: Clean) -> dict[str, str]:
    if not path.is_file():
        return {"instead": f"{name} is missing."}
    try:
        text = read(path, clean)
    except OSError as error:
        return {"instead": clean(f"{name} could not be read: {error.strerror}.")}
    return {"text": text} if text else {"instead": f"{name} is empty."}


def _whole(path: Path, clean: Clean) -> str:
    with path.open("rb") as stream:
        text = stream.read(_SCRIPT_BYTES + 1).decode("utf-8", "replace")
    lines = text[:_SCRIPT_BYTES].split("\n")
    if len(text) > _SCRIPT_BYTES:
        # Part of a line could be part of a secret.
        lines[-1] = f"(shortened: the script has more than {_SCRIPT_BYTES} bytes)"
    return "\n".join(map(clean, lines)).rstrip("\n")


def failure(paths: RunPaths, clean: Clean) -> dict[str, Any]:
    """What the ranks of a failed run left. ``errors`` and ``exits`` are lines of text, the earliest
    first; ``all_errors`` and ``all_exits`` count them. ``traceback`` is the end of the first
    error's traceback."""
    errors = _of_ranks(paths.errors, ErrorRecord)
    exits = _of_ranks(paths.exits, ExitRecord)
    traceback = errors[0].traceback.rstrip("\n").split("\n") if errors else []
    return {
        "all_errors": len(errors),
        "errors": [
            clean(
                f"rank {error.rank} on {error.node}, in {error.phase} "
                f"({error.outcome.value.replace('_', ' ')}): "
            )
            + shortened(clean(error.message), _MESSAGE_LETTERS)
            for error in errors[:_LISTED]
        ],
        "traceback": "\n".join(shortened(clean(line)) for line in traceback[-_TRACEBACK_LINES:]),
        "all_exits": len(exits),
        "exits": [clean(_ended(record)) for record in exits[:_LISTED]],
    }


def _ended(record: ExitRecord) -> str:
    how = (
        f"ended by {record.signal}" if record.signal else f"ended with exit code {record.exit_code}"
    )
    asked = ", after the launcher had asked it to end" if record.told_to_end else ""
    killed = ", for lack of memory" if record.out_of_memory_kills else ""
    return f"rank {record.rank} on {record.node} {how}{killed}{asked}"


def _of_ranks(directory: Path, kind: type[_Rank]) -> Sequence[_Rank]:
    """A directory's records, sorted by time."""
    records = [read_record(path, kind) for path in directory.glob("rank*.json")]
    return sorted(records, key=lambda record: (record.unix_time_s, record.rank))


def _object(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    record = read_json(path)
    if not isinstance(record, dict):
        raise RecordError(f"{path}: expected an object of key and value")
    return record
