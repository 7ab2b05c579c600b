"""Steps by the lines of a program's log, which is read while it grows.

A pattern has a named group ``step``, and may have ``step_s`` (seconds of a step, as the program
tells), ``step_ms``, ``gpu_tokens_per_s`` (of one GPU) and ``loss``. A line ends all steps since the
line before it, and is dated when it appears in the file. A program that keeps its lines back is
found out: its own seconds then differ from those.
"""

from __future__ import annotations

import contextlib
import csv
import re
import statistics
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from workflow_lib.audit import LOG_BLOCK_S, paces

#: the number of a step, and when it had ended (Unix time)
Moment = tuple[int, float]
#: the columns of ``steps/log.csv`` and of ``steps/records.csv``
COLUMNS = (
    "step",
    "phase",
    "started_unix_s",
    "ended_unix_s",
    "steps",
    "told_step_s",
    "loss",
    "pattern",
    "told_gpu_tokens_per_s",
)
#: steps by the lines' times and by what they say differ by less than this share
_SAME_STEP_SHARE = 0.05
#: so long apart the log is looked at; lines that come closer together have one time
_LOOK_EVERY_S = 0.02
#: at most this share of lines may have the time of the line before them
_SAME_TIME_SHARE = 0.05
#: tokens a second, as told and as the log has them, differ by less than this share
_SAME_TOKENS_SHARE = 0.15
#: bytes of a line that are looked at
_LONGEST_LINE = 4096
_NUMBER = r"[-+]?(?:\d[\d,]*)?\.?\d+(?:[eE][-+]?\d+)?"
_BEFORE = r"(?:\x1b\[[0-9;]*m|\s)*"

#: Name → the lines of a program. MLPerf's :::MLLOG has none: its "step" counts samples in some
#: benchmarks, and tokens in others.
PATTERNS: Mapping[str, str] = {
    # Megatron-LM's training_log: " iteration       10/     100 | consumed samples: …"
    "megatron-lm": rf"\biteration\s+(?P<step>\d+)/\s*\d+ \|.*?elapsed time per iteration "
    rf"\(ms\): (?P<step_ms>{_NUMBER})(?:.*?lm loss: (?P<loss>{_NUMBER}))?",
    # torchtitan's metrics: "step:  1  loss:  8.1  …  tps: 7,000", of a GPU
    "torchtitan": rf"(?:^|\W|\x1b\[\d+m)step:{_BEFORE}(?P<step>\d+)"
    rf"{_BEFORE}loss:{_BEFORE}(?P<loss>{_NUMBER})"
    rf"(?:.*?tps:{_BEFORE}(?P<gpu_tokens_per_s>{_NUMBER}))?",
    # DeepSpeed's engine: "step=10, skipped=0, lr=[…"
    "deepspeed": r"\bstep=(?P<step>\d+), skipped=\d+, lr=",
    # NeMo's and Lightning's own logger: "… global_step: 9 | reduced_train_loss: 10.8 | …"
    "nemo": rf"\bglobal_step: (?P<step>\d+) \|(?:.*?reduced_train_loss: (?P<loss>{_NUMBER}))?"
    rf"(?:.*?train_step_timing in s: (?P<step_s>{_NUMBER}))?",
    # tqdm, as in transformers: "| 10/100 [00:10<01:30,  1.02s/it". Only where it is asked for:
    # loading weights has such bars, too
    "tqdm": r"\|\s*(?P<step>\d+)/\d+ \[[\d:]+<[\d:?]+,\s*[\d.?]+(?:s/it|it/s)",
}


class PatternError(Exception):
    """A pattern cannot be used. The message says why."""


def compiled(pattern: str) -> tuple[str, re.Pattern[str]]:
    """A pattern by its name, or one's own; with what it is called. Raises PatternError."""
    if pattern in PATTERNS:
        return pattern, re.compile(PATTERNS[pattern])
    try:
        own = re.compile(pattern)
    except re.error as error:
        raise PatternError(f"{pattern!r} is no regular expression: {error}") from None
    if "step" not in own.groupindex:
        known = ", ".join(PATTERNS)
        raise PatternError(
            f"{pattern!r} has no group (?P<step>…), and is none of the named patterns: {known}"
        )
    return "own", own


class LogSteps:
    """Follows a log in a thread, and writes ``steps/log.csv``."""

    COLUMNS = COLUMNS

    def __init__(self, log: Path, steps: Path, pattern: str | None, warmup_steps: int) -> None:
        """Lines from now on count. Without a pattern the first named one that fits is taken.

        Raises PatternError.
        """
        named = [pattern] if pattern else [name for name in PATTERNS if name != "tqdm"]
        chosen = [compiled(name) for name in named]
        self._patterns = dict(chosen)
        self._log = log
        self._offset = log.stat().st_size if log.exists() else 0
        self._path = steps / "log.csv"
        self._warmup_steps = warmup_steps
        #: the step that ended before the program began; None until two lines have told it
        self._resumed_from: int | None = None
        self._rest = b""
        self._latest: Moment | None = None
        self._rows: list[list[object]] = []
        #: why not all steps were written; "" if they were
        self.problem = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="log", daemon=True)

    def start(self) -> None:
        """Begin. Not before the command was started, which forks."""
        self._thread.start()

    def stop(self) -> None:
        """Read the log to its end."""
        self._stopping.set()
        self._thread.join()

    def _follow(self) -> None:
        try:
            self._write()
        except OSError as error:
            self.problem = f"{self._path}: {error.strerror}; later steps are not known"

    def _write(self) -> None:
        with self._path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(COLUMNS)
            while True:
                last = self._stopping.is_set()
                for row in self.new_rows(time.time()):
                    writer.writerow(row)
                stream.flush()
                if last:
                    return
                self._stopping.wait(_LOOK_EVERY_S)

    def new_rows(self, now: float) -> list[list[object]]:
        """The rows of the lines that have come; ``now`` is when they were seen (Unix time)."""
        rows: list[list[object]] = []
        with contextlib.suppress(OSError), self._log.open("rb") as stream:
            stream.seek(self._offset)
            while content := stream.read(1 << 20):
                self._offset += len(content)
                *lines, self._rest = re.split(rb"[\r\n]", self._rest + content)
                # Of a line without an end no more is kept than any pattern needs.
                self._rest = self._rest[-_LONGEST_LINE:]
                if "tqdm" in self._patterns:
                    # Only the next bar ends this one, with its carriage return.
                    lines.append(self._rest)
                for line in lines:
                    if row := self._row(line.decode("utf-8", "replace")[:_LONGEST_LINE], now):
                        rows.append(row)
        return rows

    def _row(self, line: str, now: float) -> list[object] | None:
        for name, pattern in self._patterns.items():
            match = pattern.search(line)
            if match is None:
                continue
            if len(self._patterns) > 1:
                self._patterns = {name: pattern}
            values = match.groupdict()
            step = int(values["step"])
            if name == "tqdm" and self._latest is not None and step == self._latest[0]:
                return None  # A bar is drawn again after each line that is printed over it.
            before, self._latest = self._latest, (step, now)
            if before is None:
                return None
            told_s = _number(values.get("step_s"))
            if (told_ms := _number(values.get("step_ms"))) is not None:
                told_s = told_ms / 1e3
            loss = _number(values.get("loss"))
            per_gpu = _number(values.get("gpu_tokens_per_s"))
            if self._resumed_from is None:
                self._resumed_from = resumed_from(before, self._latest)
            last = self._warmup_steps + (self._resumed_from or 0)
            return row_between(before, self._latest, last, name, told_s, loss, per_gpu)
        return None


def resumed_from(first: Moment, second: Moment) -> int | None:
    """The number of the step after which the program began, by its first two lines: 0 unless it
    goes on from what was saved. None where the second line tells no later step."""
    apart = second[0] - first[0]
    return max(0, first[0] - apart) if apart > 0 else None


def row_between(
    before: Moment,
    ended: Moment,
    last_warmup_step: int,
    source: str,
    told_s: float | None = None,
    loss: float | None = None,
    gpu_tokens_per_s: float | None = None,
) -> list[object] | None:
    """The row of the steps after ``before`` until ``ended``; None where steps begin anew."""
    steps = ended[0] - before[0]
    if steps <= 0:
        return None
    phase = "measured" if before[0] >= last_warmup_step else "warmup"
    times = (f"{before[1]:.6f}", f"{ended[1]:.6f}")
    row = [ended[0], phase, *times, steps, told_s, loss, source, gpu_tokens_per_s]
    return ["" if value is None else value for value in row]


def _number(text: str | None) -> float | None:
    return None if text is None else float(text.replace(",", ""))


def buffering(path: Path) -> str:
    """Why the times of lines are not those of steps: many appeared at one moment, or the seconds
    that the program tells itself differ; "" if they are."""
    measured = _measured_rows(path, "step")
    together = sum(row["started_unix_s"] == row["ended_unix_s"] for row in measured)
    if together > _SAME_TIME_SHARE * len(measured):
        return (
            f"{together} of {len(measured)} lines of the log appeared together with the line "
            "before: the program keeps its output back (set PYTHONUNBUFFERED=1), or its steps are "
            f"shorter than {_LOOK_EVERY_S:g} s (take --steps hook)"
        )
    measured = _measured_rows(path, "told_step_s")
    if not measured:
        return ""
    told_s = statistics.median(float(row["told_step_s"]) for row in measured)
    edges = [(float(row["started_unix_s"]), float(row["ended_unix_s"])) for row in measured]
    counts = [int(row["steps"]) for row in measured]
    seen_s = statistics.median(paces(edges, counts, LOG_BLOCK_S))
    if abs(seen_s - told_s) <= _SAME_STEP_SHARE * told_s:
        return ""
    ratio = seen_s / told_s if told_s else 0.0
    if any(abs(ratio - off) <= _SAME_STEP_SHARE * off for off in (1e3, 1e-3)):
        why = "the pattern's seconds are milliseconds, or the other way round: step_s or step_ms"
    else:
        why = (
            "it keeps its output back (set PYTHONUNBUFFERED=1), or tells the time of something else"
        )
    return (
        f"lines of the log appeared every {seen_s:.3g} s a step, where the program tells "
        f"{told_s:.3g} s: {why}"
    )


def came_at_once(path: Path) -> bool:
    """Whether all lines of measured steps appeared at one moment, so that nothing tells steps."""
    return all(row["started_unix_s"] == row["ended_unix_s"] for row in _measured_rows(path, "step"))


def other_tokens(path: Path, tokens_per_s: float | None, gpus: int) -> str:
    """Why the tokens that the user told, by ``tokens_per_s`` of all GPUs, are not those of the log;
    "" if they are, or one of both tells none."""
    measured = _measured_rows(path, "told_gpu_tokens_per_s")
    if not measured or tokens_per_s is None or not gpus:
        return ""
    of_gpu = statistics.median(float(row["told_gpu_tokens_per_s"]) for row in measured)
    if abs(tokens_per_s / gpus - of_gpu) <= _SAME_TOKENS_SHARE * of_gpu:
        return ""
    return (
        f"by the tokens told, each of {gpus} GPUs has {tokens_per_s / gpus:,.0f} tokens/s; by the "
        f"program's log it has {of_gpu:,.0f}. --tokens-per-step is of all ranks together"
    )


def _measured_rows(path: Path, column: str) -> list[dict[str, str]]:
    """The rows of measured steps that have a value in a column."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = csv.DictReader(stream)
        return [row for row in rows if row["phase"] == "measured" and row.get(column)]


def own_log() -> Path | None:
    """The file that this process's output goes to, as in a batch script; None if it is none."""
    try:
        path = Path("/proc/self/fd/1").readlink()
    except OSError:
        return None
    return path if path.is_file() else None
