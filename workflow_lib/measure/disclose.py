"""``triptych disclose PATH…``: what a training's disclosures ask about its energy.

Of measured commands, or runs of sweeps, that trained one model, it makes a table of terms, each
measured, estimated, given or not known, with an interval where there is one. From the table follow
the energy part of the EU AI Act's Annex XI (Regulation (EU) 2024/1689, 2 (d) and (e)), a model
card's section, and SPDX 3.0.1's ``trainingEnergyConsumption``.

What no sensor here sees (cooling, networks, storage, what else the nodes draw) is not known, unless
it is given with its source. Nothing is assumed in its place.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from workflow_lib.audit import Audit, Clock, DamagedError, Files, audit_run, runs_below
from workflow_lib.power_errors import GAIN_SHARE, OFFSET_W, true_ends
from workflow_lib.records.whole_files import report_error, whole_file
from workflow_lib.words import counted, power_of_ten

_J_PER_KWH = 3.6e6
#: from here on a number is written as a power of ten
_MANY = 1e9
_OF_GPUS = "energy of the GPUs"
_SENSORS = (
    f"the GPUs' own sensors; ends by their published errors, a gain of ±{100 * GAIN_SHARE:g} % and "
    f"±{OFFSET_W:g} W"
)
#: option → what it gives, and its unit
_GIVEN = {
    "pue": ("facility's energy over that of its computers", ""),
    "grid": ("emissions of the grid", "g CO2e/kWh"),
    "flops": ("computation of the training", "FLOP"),
}


class Term(NamedTuple):
    """A line of the table. A value that is not known is null."""

    name: str
    value: float | None
    unit: str
    #: ends of what the sensors leave, or of the repeats; null where nothing tells them
    ends: tuple[float, float] | None
    #: measured, estimated, given or not known
    kind: str
    how: str


class Job(NamedTuple):
    """A measured command or a run of a sweep, from its begin to its end."""

    name: str
    started_unix_s: float
    ended_unix_s: float
    gpus: Counter[str]
    energy_j: float
    #: of the steps that count; null where nobody told tokens
    token_j: float | None
    tokens_per_s: float | None
    #: of a run of a sweep: jobs of another cell are no repeats
    cell: str = ""

    @property
    def duration_s(self) -> float:
        """How long it took."""
        return self.ended_unix_s - self.started_unix_s

    @property
    def gpu_count(self) -> int:
        """GPUs of all models together."""
        return sum(self.gpus.values())

    @property
    def kind(self) -> str:
        """What is the same in repeats."""
        return ", of ".join(filter(None, (_in_words(self.gpus), self.cell)))


def read_jobs(path: Path) -> Iterator[Job]:
    """The jobs of a run, of a directory of runs, or of a sweep's archive, those of attempts that
    failed, too. A run of a sweep that was planned and never begun is none.

    Raises DamagedError as :func:`read_job` does, and where there is no job; and OSError.
    """
    jobs = 0
    for files in runs_below(path):
        if files.read("measured.json") is not None or files.read("environment.json") is not None:
            jobs += 1
            yield read_job(files)
    if not jobs:
        raise DamagedError(f"{path} has no run of a sweep, and no command that was measured")


def read_job(files: Files) -> Job:
    """A job's energy from its begin to its end, its warm-up and start included.

    Raises DamagedError for one that is simulated, did not end, or whose energy is not known or not
    valid, and OSError.
    """
    try:
        record = files.record("measured.json") or _as_measured(files)
        why = "; ".join(map(str, record["invalid"]))
        if record["simulated"]:
            why = "its readings are simulated"
        whole = json.dumps({**record, "rung": 0, "steps": []}).encode()
        if not why:
            read = files.read
            audit = Audit(
                Files(files.name, lambda of: whole if of == "measured.json" else read(of))
            )
            why = "; ".join(audit.invalid)
        if not why and "energy_j" not in audit.values:
            why = "telemetry does not cover the energy of its GPUs"
        if why:
            raise DamagedError(why)
        began, ended = record.get("job") or (record["started_unix_s"], record["ended_unix_s"])
        return Job(
            "/".join(files.name.split("/")[-2 if "cell" in record else -1 :]),
            float(began),
            float(ended),
            Counter(str(gpu["name"]) for gpu in record["gpus"]),
            audit.values["energy_j"],
            record["values"].get("energy_per_token_j"),
            record["values"].get("tokens_per_s"),
            record.get("cell", ""),
        )
    except (DamagedError, KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"{files.name} cannot be disclosed: {error}") from None


def _as_measured(files: Files) -> dict[str, Any]:
    """A run of a sweep, as ``measured.json`` has a command: from the first reading of every GPU to
    its last."""
    ended = files.record("ended.json") or {}
    nodes = ended.get("nodes", [])
    starts: list[dict[str, Any]] = []
    spans: list[tuple[float, float]] = []
    for node in nodes:
        start = files.record(f"telemetry/{node}.json")
        rows = files.rows(f"telemetry/{node}.csv")
        if not start or not rows or not files.record(f"telemetry/{node}-end.json"):
            raise DamagedError(f"node {node} has no telemetry, or it was cut off")
        clock = Clock(files.record(f"steps/clock-{node}.json"))
        times = [(row["gpu"], clock.corrected(float(row["unix_time_s"]))) for row in rows]
        spans += zip(dict(reversed(times)).values(), dict(times).values())
        starts.append(start)
    if not nodes:
        raise DamagedError("its job was cut off, so telemetry does not tell its whole energy")
    audit, damage = audit_run(files)
    return {
        "cell": files.name.split("/")[-2],
        "nodes": nodes,
        "job": (ended["started_unix_s"], ended["ended_unix_s"]),
        "started_unix_s": max(first for first, _ in spans),
        "ended_unix_s": min(last for _, last in spans),
        "gpus": [gpu for start in starts for gpu in start["gpus"]],
        "simulated": any(start["simulated"] for start in starts),
        "invalid": audit.invalid if audit else damage,
        "tokens": None,
        "tokens_per_step": None,
        "values": audit.values if audit else {},
    }


def terms(
    jobs: Sequence[Job], tokens: float | None, given: dict[str, tuple[float, str]]
) -> list[Term]:
    """The table. ``tokens`` are those of a whole training that the jobs are a part of; ``given``
    has values by the names of their options, with their sources.

    Raises DamagedError if ``tokens`` are given, and a job does not tell its own, or ran on other
    GPUs.
    """
    table = [*_measured(jobs)] if tokens is None else [*_estimated(jobs, tokens)]
    of_gpus = table[-1]
    table += [
        Term(f"energy of {name}", None, "kWh", None, "not known", "nothing here saw it")
        for name in ("the nodes beside their GPUs", "networks and storage", "jobs not named here")
    ]
    pue, grid, flops = map(given.get, _GIVEN)
    if pue:
        table.append(_times("energy with cooling, of the GPUs", of_gpus, pue, "kWh", 1.0))
    else:
        table.append(_unknown("energy of cooling and power supply", "kWh", "pue"))
    if grid:
        energy = table[-1] if pue else of_gpus
        table.append(_times("emissions, of the GPUs", energy, grid, "kg CO2e", 1e-3))
    else:
        table.append(_unknown("emissions", "kg CO2e", "grid"))
    if flops:
        table.append(Term("computation", flops[0], "FLOP", None, "given", flops[1]))
    else:
        table.append(_unknown("computation", "FLOP", "flops"))
    return table


def _measured(jobs: Sequence[Job]) -> Iterator[Term]:
    """Time and energy of the jobs themselves."""
    began, ended = (
        time.strftime("%Y-%m-%d", time.gmtime(at))
        for at in (min(job.started_unix_s for job in jobs), max(job.ended_unix_s for job in jobs))
    )
    days = " to ".join(dict.fromkeys((began, ended)))
    how = f"begin to end of {counted(len(jobs), 'job')}, {days}"
    gpu_s = sum(job.duration_s * job.gpu_count for job in jobs)
    yield Term("GPU-hours", gpu_s / 3600, "h", None, "measured", how)
    yield Term("training time", _covered_s(jobs) / 3600, "h", None, "measured", how)
    energy_j = sum(job.energy_j for job in jobs)
    ends = true_ends(energy_j, OFFSET_W * gpu_s)
    yield _energy(energy_j, ends, "measured", f"{how}, by {_SENSORS}")


def _covered_s(jobs: Sequence[Job]) -> float:
    """How long at least one of the jobs ran."""
    covered_s, until = 0.0, -math.inf
    for job in sorted(jobs, key=lambda job: job.started_unix_s):
        covered_s += max(0.0, job.ended_unix_s - max(until, job.started_unix_s))
        until = max(until, job.ended_unix_s)
    return covered_s


def _estimated(jobs: Sequence[Job], tokens: float) -> Iterator[Term]:
    """Time and energy of so many tokens, by the steps of the jobs, each of which is a repeat."""
    if not jobs or not all(job.token_j and job.tokens_per_s for job in jobs):
        raise DamagedError(
            "--tokens needs the joules per token of every job; measure them with --tokens-per-step"
        )
    if len(kinds := {job.kind for job in jobs}) > 1:
        listed = "".join(f"\n  {kind}" for kind in sorted(kinds))
        raise DamagedError(
            "--tokens needs jobs that are repeats; name those of one of these, by the directory of "
            f"a cell where they are runs of a sweep:{listed}"
        )
    count = jobs[0].gpu_count
    how = f"{_number(tokens)} tokens at the pace of the steps of {counted(len(jobs), 'job')}"
    hours = [tokens / job.tokens_per_s / 3600 for job in jobs if job.tokens_per_s]
    for name, factor in (("GPU-hours", count), ("training time", 1)):
        ends = (factor * min(hours), factor * max(hours)) if len(hours) > 1 else None
        yield Term(name, factor * fmean(hours), "h", ends, "estimated", how)
    energies_j = [tokens * job.token_j for job in jobs if job.token_j]
    offset_j = OFFSET_W * 3600 * count * max(hours)
    low_j, _ = true_ends(min(energies_j), offset_j)
    _, high_j = true_ends(max(energies_j), offset_j)
    yield _energy(fmean(energies_j), (low_j, high_j), "estimated", f"{how}, by {_SENSORS}")


def _energy(energy_j: float, ends_j: tuple[float, float], kind: str, how: str) -> Term:
    low, high = (end / _J_PER_KWH for end in ends_j)
    return Term(_OF_GPUS, energy_j / _J_PER_KWH, "kWh", (low, high), kind, how)


def _in_words(gpus: Counter[str]) -> str:
    return ", ".join(f"{count}× {name}" for name, count in sorted(gpus.items()))


def _times(name: str, of: Term, by: tuple[float, str], unit: str, scale: float) -> Term:
    assert of.value is not None
    assert of.ends is not None
    factor = by[0] * scale
    per = f" {_GIVEN['grid'][1]}" if unit == "kg CO2e" else ""
    how = f"the line “{of.name}” times {by[0]:g}{per} ({by[1]}); at least that, as not all is known"
    ends = of.ends[0] * factor, of.ends[1] * factor
    return Term(name, of.value * factor, unit, ends, "estimated", how)


def _unknown(name: str, unit: str, option: str) -> Term:
    what = _GIVEN[option][0]
    how = f"give --{option} with its source: {what}"
    return Term(name, None, unit, None, "not known", how)


def page(jobs: Sequence[Job], table: Sequence[Term]) -> str:
    """The disclosure as Markdown."""
    listed = "; ".join(sorted({_in_words(job.gpus) for job in jobs}))
    known = {term.name: term for term in table}
    energy = known[_OF_GPUS]
    rows = ["| term | value | at least, at most | kind | how |", "|---|---|---|---|---|"]
    rows += [
        f"| {each.name} | {_value(each)} | {_ends(each)} | {each.kind} | {each.how} |"
        for each in table
    ]
    emitted = known.get("emissions, of the GPUs")
    return "\n".join(
        [
            "# Energy of a training",
            "",
            f"Hardware: {listed}. Jobs: {', '.join(f'`{job.name}`' for job in jobs)}.",
            "",
            *rows,
            "",
            "## EU AI Act, Annex XI, section 1, 2 (d) and (e)",
            "",
            f"- Computational resources: {_value(known['computation'])}; "
            f"{_value(known['GPU-hours'])} of GPUs in {_value(known['training time'])}, "
            f"{energy.kind}.",
            f"- Energy consumption, {energy.kind}: {_value(energy)} ({_ends(energy)}), of the GPUs "
            "alone. The terms above that are not known come on top.",
            "",
            "## Model card",
            "",
            f"- **Hardware type:** {listed}",
            f"- **Hours used:** {_value(known['GPU-hours'])} of GPUs, {energy.kind}",
            f"- **Energy:** {_value(energy)} ({_ends(energy)}), {energy.kind}, of the GPUs alone",
            f"- **Carbon emitted:** {_at_least(emitted) if emitted else 'not known'}",
            "",
        ]
    )


def _at_least(term: Term) -> str:
    return f"{_value(term)} ({_ends(term)}), {term.kind}, of the GPUs alone, so at least that"


def _value(term: Term) -> str:
    return "not known" if term.value is None else f"{_number(term.value)} {term.unit}"


def _ends(term: Term) -> str:
    if term.ends is None:
        return "–"
    return f"{_number(term.ends[0])} to {_number(term.ends[1])} {term.unit}"


def _number(value: float) -> str:
    if value >= _MANY:
        return power_of_ten(float(f"{value:.2e}"))
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def spdx(table: Sequence[Term]) -> dict[str, Any]:
    """What an ``ai_AIPackage`` of an SPDX 3.0.1 document has as its ``ai_energyConsumption``."""
    (energy,) = (term for term in table if term.name == _OF_GPUS)
    assert energy.value is not None
    return {
        "type": "ai_EnergyConsumption",
        "ai_trainingEnergyConsumption": [
            {
                "type": "ai_EnergyConsumptionDescription",
                # A decimal, which has no exponent.
                "ai_energyQuantity": format(Decimal(f"{energy.value:.4g}"), "f"),
                "ai_energyUnit": "kilowattHour",
            }
        ],
    }


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(prog=prog, description=__doc__.partition("\n")[0])
    parser.add_argument(
        "paths",
        type=Path,
        nargs="+",
        metavar="PATH",
        help="measured commands, runs of sweeps, directories of them, or archives of sweeps",
    )
    parser.add_argument(
        "--tokens", type=_positive, help="of a whole training that the jobs are a part of"
    )
    for option, (what, unit) in _GIVEN.items():
        parser.add_argument(
            f"--{option}", type=_positive, help=f"{what}{f', {unit}' if unit else ''}"
        )
        parser.add_argument(f"--{option}-source", help=f"where --{option} is from")
    parser.add_argument(
        "--output", type=Path, default=Path("disclosure.md"), help="disclosure.md unless given"
    )
    return parser


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number above 0")
    return value


def main(arguments: Sequence[str] | None = None, prog: str = "triptych disclose") -> int:
    """Write the disclosure; returns the exit code, 1 after one message on stderr."""
    parser = command_line(prog)
    chosen = vars(parser.parse_args(arguments))
    given = {}
    for option in _GIVEN:
        value, source = chosen[option], chosen[f"{option}_source"]
        if (value is None) != (source is None):
            parser.error(
                f"--{option} and --{option}-source are given together: a number and its source"
            )
        if option == "pue" and value is not None and value < 1:
            parser.error(
                f"--pue is a facility's energy over that of its computers, so no {value:g}"
            )
        if value is not None:
            given[option] = (value, " ".join(source.replace("|", "/").split()))
    try:
        jobs = [job for path in chosen["paths"] for job in read_jobs(path)]
        if len({job.started_unix_s for job in jobs}) < len(jobs):
            raise DamagedError("one job is named twice, or is a copy: its energy counts once")
        if chosen["tokens"] is not None:
            # Runs of sweeps that did not complete, and profiled ones, tell nothing of steps.
            jobs = [job for job in jobs if job.token_j or not job.cell]
        table = terms(jobs, chosen["tokens"], given)
        output: Path = chosen["output"]
        with whole_file(output) as draft:
            draft.write_text(page(jobs, table), encoding="utf-8")
        said = [f"{output}"]
        beside = output.with_suffix(".spdx.json")
        if chosen["tokens"] is not None:  # SPDX has no word for an estimate
            beside.unlink(missing_ok=True)  # of another disclosure of this name
        else:
            with whole_file(beside) as draft:
                draft.write_text(json.dumps(spdx(table), indent=1) + "\n", encoding="utf-8")
            said.append(f"{beside} for an SPDX document")
    except (DamagedError, OSError) as error:
        return report_error("disclose", error)
    for term in table:
        print(f"{term.name:38} {_value(term):>18}  {term.kind}")
    print(", and ".join(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
