"""The plan: the cells of a platform's sweeps with their estimated costs, and why some cannot run.

``python -m workflow_lib.plan --platform h200`` prints it; ``--sweep`` limits it to one sweep, whose
plan is kept with its results.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from workflow_lib import cells, table_files
from workflow_lib.cells import PlannedCell, Sweep, Views, view_of
from workflow_lib.config import Invocation, Prediction
from workflow_lib.options import add_config, ends_quietly
from workflow_lib.plan_text import describe
from workflow_lib.records.cell_axes import identity
from workflow_lib.records.checksums import write_checksums
from workflow_lib.records.paths import SweepPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.tables import PLAN
from workflow_lib.records.training import NATIVE
from workflow_lib.records.whole_files import report_error
from workflow_lib.results import nearest_existing
from workflow_lib.study import ConfigError, Study, checked, load_study, lookup, plain_of
from workflow_lib.words import counted


def table(sweeps: Iterable[Sweep]) -> pl.DataFrame:
    """The plan as a table with the columns of records.PLAN: one row a cell. A cell of two sweeps
    has one row."""
    rows = [_row(planned, names) for planned, names in cells.merge(sweeps).values()]
    return table_files.table(rows, PLAN)


def _row(planned: PlannedCell, sweeps: tuple[str, ...]) -> dict[str, Any]:
    """A row of the plan, without what is not known of the cell."""
    cell, cost = planned.cell, planned.estimate
    row = {
        **identity(cell),
        "sweeps": ",".join(sweeps),
        "repeats": planned.repeats,
        "profiled_steps": planned.profiled_steps,
        "feasible": planned.feasible,
        "reason": planned.reason,
        **_predicted(planned.prediction),
    }
    if cost is None:
        return row
    row |= {
        "planned_bubble_share": cost.bubble_share,
        "step_time_s": cost.step_time_s,
        "time_limit_min": cost.time_limit_min,
    }
    if planned.feasible:
        row["gpu_hours"] = cost.gpu_hours(cell, planned.repeats, planned.profiled_steps)
    if time := cost.step_time:
        row |= {
            "step_time_low_s": time.low_s,
            "step_time_high_s": time.high_s,
            "step_time_source": time.source,
            "step_time_kind": time.kind,
        }
    if memory := cost.memory:
        gpu_bytes = cell.hardware.gpu_memory_bytes
        row |= {
            "memory_allocated_per_gpu_bytes": memory.allocated,
            "memory_per_gpu_bytes": memory.total,
            "memory_used_per_gpu_bytes": memory.used(gpu_bytes),
            "fits": None if gpu_bytes is None else memory.fits(gpu_bytes),
        }
    return row


def _predicted(prediction: Prediction | None) -> dict[str, Any]:
    if prediction is None:
        return {}
    columns: dict[str, Any] = {"predicted_against": prediction.against}
    for name in ("time_gain", "energy_gain"):
        ends = "", "_low", "_high"
        columns |= {
            f"predicted_{name}{end}": value
            for end, value in zip(ends, getattr(prediction, name), strict=True)
        }
    return columns


def _fits_none(study: Study, sweep: Sweep) -> bool:
    """Whether it is for all platforms, and its own can run no cell of it."""
    return study.sweeps[sweep.spec].is_for_all and not sweep.can_run


def of_platform(
    study: Study, sweeps: Views, platform: str
) -> tuple[list[Sweep], dict[str, ConfigError]]:
    """The sweeps of a platform, without those for all platforms that it can run no cell of; and
    name → mistake of those that have one, or of which a file does not tell the platform. Raises
    ConfigError for a mistake in the platform's file, and if there are neither."""
    lookup("platform", platform, study.platforms)
    views = {
        view_of(name, spec, platform)
        for name, spec in study.sweeps.items()
        if platform in study.platforms_of(spec)
    }
    planned = []
    bad = {
        name: error for name, error in sweeps.bad.items() if name in views | study.sweeps.bad.keys()
    }
    for sweep in (sweep for sweep in sweeps.values() if sweep.platform == platform):
        if _fits_none(study, sweep):
            continue
        try:
            refuse_idle(sweep, study.directory)
        except ConfigError as error:
            bad[sweep.name] = error
        else:
            planned.append(sweep)
    if not planned and not bad:
        raise ConfigError(
            f"no sweep has a cell that {platform} can run; name it among the platforms of a sweep "
            f"in {study.directory / 'sweeps'}"
        )
    return planned, bad


def default_of(
    study: Study, platform: str, sweeps: Iterable[Sweep]
) -> tuple[str, pl.DataFrame] | None:
    """The command that runs the sweeps of ``config.yaml`` on a platform, and their plan; None if
    there is no ``config.yaml``. Raises ConfigError."""
    path = study.directory / "config.yaml"
    if not path.exists():
        return None
    chosen = checked(str(path), Invocation, plain_of(path)).sweeps
    command = f"snakemake --profile {study.platforms[platform].profile(platform)}"
    return command, table(sweep for sweep in sweeps if sweep.spec in chosen)


def refuse_idle(sweep: Sweep, directory: Path) -> None:
    """Raise ConfigError for a sweep of which no cell can run: that is a mistake, while a sweep in
    which some cells cannot run is valid."""
    path = directory / "sweeps" / f"{sweep.spec}.yaml"
    if not sweep.cells:
        raise ConfigError(
            f"{path}: it has no cell on {sweep.platform}: its exclude leaves all of them out, "
            "or no entry of its matrix is for this platform"
        )
    if not sweep.can_run:
        first = sweep.cells[0]
        raise ConfigError(
            f"{path}: none of its {counted(len(sweep.cells), 'cell')} can run on "
            f"{sweep.platform}; {first.cell.id}: {first.reason}"
        )


def warnings(sweeps: Iterable[Sweep], study: Study, machine_bytes: int) -> list[str]:
    """What the planned sweeps allow and nobody is likely to want. ``machine_bytes`` is the memory
    of this machine."""
    messages = []
    for sweep in sweeps:
        path = study.directory / "sweeps" / f"{sweep.spec}.yaml"
        messages += [
            f"{path}: exclude.{idle_exclusion}: fits no cell"
            for idle_exclusion in sweep.idle_exclusions
        ]
        if study.platforms[sweep.platform].scheduler != "local":
            continue
        needs = [
            planned.estimate.memory.total * planned.cell.degrees.world_size
            for planned in sweep.cells
            if planned.estimate is not None
            and planned.estimate.memory is not None
            and planned.cell.hardware.gpu_memory_bytes is None
        ]
        if large := [need for need in needs if need > machine_bytes]:
            messages.append(
                f"{path}: {counted(len(large), 'cell')} would need up to {max(large) / 1e9:.0f} GB "
                f"on a CPU, and this machine has {machine_bytes / 1e9:.0f} GB"
            )
    return list(dict.fromkeys(messages))


def refuse_unwritable(path: Path) -> None:
    """Raise ConfigError for a file that this user cannot write, in a read-only clone for example,
    and say where else it may go."""
    there = nearest_existing(path.absolute().parent)
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{path} cannot be written, because {there} is read-only for you: name another "
            "directory (make plan RESULTS=DIRECTORY) or file (--output FILE); without --output "
            "the plan is only printed"
        )


def write(plan: pl.DataFrame, path: Path) -> None:
    """Write a plan, and its checksum beside it. Raises OSError."""
    table_files.write_table(plan, path)
    write_checksums(SweepPaths(path.parent).plan_checksum, (path,))


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    add_config(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--platform", help="plan every sweep of this platform")
    what.add_argument("--sweep", help="plan this sweep, for example parallelism-h200")
    parser.add_argument("--output", type=Path, help="also write the plan to this Parquet file")
    parser.add_argument("--quiet", action="store_true", help="print nothing")
    return parser


@ends_quietly
def main(argv: Sequence[str] | None = None, prog: str = "python -m workflow_lib.plan") -> int:
    """Print the plan, and write it if ``--output`` is given. Returns the exit code."""
    arguments = command_line(prog).parse_args(argv)
    try:
        if arguments.output:
            refuse_unwritable(arguments.output)
        study = load_study(arguments.config)
        sweeps = cells.expand_study(study)
        bad: dict[str, ConfigError] = {}
        default = None
        if arguments.sweep:
            chosen = [lookup("sweep", arguments.sweep, sweeps)]
            refuse_idle(chosen[0], arguments.config)
        else:
            chosen, bad = of_platform(study, sweeps, arguments.platform)
            try:
                default = default_of(study, arguments.platform, chosen) if chosen else None
            except ConfigError as error:
                bad["config.yaml"] = error
        plan = table(chosen)
        if arguments.output:
            write(plan, arguments.output)
    except (ConfigError, RecordError, OSError) as error:
        return report_error("triptych", error)
    if bad or not arguments.quiet:
        for mistake in dict.fromkeys((*sweeps.mistakes, *map(str, bad.values()))):
            print(f"triptych: left out: {mistake}", file=sys.stderr)
    if chosen and not arguments.quiet:
        for sweep in (each for each in sweeps.values() if each.platform == arguments.platform):
            # Without GPUs beside each other, some have no cell at all.
            for planned in sweep.cells[:1] if _fits_none(study, sweep) else ():
                print(
                    f"triptych: {sweep.name} is left out, as none of its cells can run: "
                    f"{planned.reason}",
                    file=sys.stderr,
                )
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        for warning in warnings(chosen, study, memory):
            print(f"triptych: {warning}", file=sys.stderr)
        by_sweep = {sweep.name: table([sweep]) for sweep in chosen}
        print(describe(plan, by_sweep, default))
        for name in dict.fromkeys(plan["trainer"]):
            if name != NATIVE:
                print(f"Trainer {name} differs from {NATIVE}: {study.trainers[name].differs}.")
        if arguments.output:
            print(f"\nWritten to {arguments.output}")
    if bad:
        print(
            f"triptych: the plan lacks {', '.join(sorted(bad))}, for the mistakes above",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
