"""The pages of what ``research/sensors_on_gpus.py`` saw: one of each map in evidence/sensors, with
what another file says of the energy counter.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from research.measuring.readings import ENERGY, MOMENTARY, POWER, SAMPLES
from research.measuring.sensor_map import (
    COUNTER_TURNS,
    IN_STEP,
    LENGTHS_S,
    LOOKS_S,
    OUT_OF_STEP_S,
    STEADY,
    TURNS,
    Bracket,
    Errors,
    Look,
    MapRow,
    bracket,
    fit_look,
    map_rows,
)
from research.measuring.sensor_response import fit_window, update_period
from research.pages import findings
from research.pages.parts import percent
from research.pages.tables import NOTICE, document, svg, table
from workflow_lib.report.figures import style

#: part → its lines
Records = Mapping[str, list[dict[str, Any]]]
RECORDS = Path(__file__).parents[2] / "evidence" / "sensors"
#: the same from a page
_DATA = "../../evidence/sensors"
#: ends the name of a file whose other part is the map's
_OF_COUNTER = "-counter.jsonl.xz"
#: a reading, what it is called, and its colour and marker
_SHOWN = (
    (SAMPLES, "driver's samples", style.BLUE, "o"),
    (POWER, "readings of 1 s", style.VERMILLION, "s"),
    (MOMENTARY, "momentary power", style.GREY, "^"),
)


def files() -> dict[Path, str]:
    """Path and text of each page and its figure."""
    made = dict[Path, str]()
    for of_counter in sorted(RECORDS.glob(f"*{_OF_COUNTER}")):
        path = of_counter.with_name(of_counter.name.replace(_OF_COUNTER, ".jsonl.xz"))
        name = f"sensors-{path.name.removesuffix('.jsonl.xz')}"
        records, counter = _records(path), _records(of_counter)
        rows = list(_map(records))
        made[findings.DIRECTORY / f"{name}.md"] = _page(path.name, name, records, rows, counter)
        made[findings.DIRECTORY / "images" / f"{name}.svg"] = _figure(name, rows)
    return made


def _records(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Part → its lines."""
    parts = dict[str, list[dict[str, Any]]]()
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            parts.setdefault(record["part"], []).append(record)
    return parts


def _map(records: Records) -> Iterator[MapRow]:
    """The map's rows, of the first GPU."""
    for edges in records["map-edges"]:
        if edges["gpu"] == 0:
            turn = edges["turn"]
            yield from map_rows(TURNS[turn], _changes(records, "map", turn), edges["began_unix_s"])


def _changes(records: Records, part: str, turn: int) -> dict[str, Any]:
    """Reading → its changes in a turn of a part, of the first GPU."""
    return {
        each["reading"]: each["seen"]
        for each in records[f"{part}-raw"]
        if (each["turn"], each["gpu"]) == (turn, 0)
    }


def _page(file: str, name: str, records: Records, rows: Sequence[MapRow], counter: Records) -> str:
    (gpu,) = records["gpus"]
    brackets = list(_brackets(counter))
    apart = [row for row in rows if row.wave.period_s in OUT_OF_STEP_S]
    waves = [row for row in rows if row.wave != STEADY]
    worst = max(waves, key=lambda row: _most(row.errors[SAMPLES]))
    within = max(_most(row.errors[SAMPLES]) for row in apart if row.wave.period_s < 2 * LOOKS_S)
    return document(
        NOTICE,
        f"# When do power readings of an {gpu['name'].removeprefix('NVIDIA ')} miss the load?",
        f"If it repeats every 20 ms, or in some fractions and multiples of that. With a period of "
        f"{1e3 * worst.wave.period_s:.0f} ms and work in {100 * worst.wave.duty:.0f} % of it, the "
        f"driver's samples are {_range(worst.errors[SAMPLES])} off the energy counter, by the "
        f"phase. With periods of 17.3 and 23.1 ms they are within {100 * within:.1f} %. "
        "[Measurement](../explanation/measurement.md) says what follows for energies of training.",
        f"![By how much three readings are off the energy counter, by the period of the load]"
        f"(images/{name}.svg)",
        f"One {gpu['name']}, driver {gpu['driver']}, {file[-19:-9]}. Its load was square waves of "
        "matrix products (2,048 rows, bf16), whose edges the host kept to 0.1 ms. A wave lasts "
        "13 s, and its period is a little off such a one, so each phase passes under the sensor "
        "once. What a reading says in a second is set beside the energy counter's increase in that "
        "second: ranges hold 95 % of the seconds, and the mean is over all of them. A run whose "
        f"steps keep their phase stays at one place of a range. [The raw data]({_DATA}/{file}) are "
        "what `research/sensors_on_gpus.py` saw: every change of every reading.",
        table(
            (
                *("period, ms", "work"),
                *(f"{name}, % (mean)" for _, name, *_ in _SHOWN),
                "the counter's seconds off their mean, %",
            ),
            map(_row, rows),
        ),
        "## What the counter itself misses",
        _of_counter(brackets),
        f"Under the products, power moves by itself by a tenth within seconds. So [another load]"
        f"({_DATA}/{file.replace('.jsonl.xz', _OF_COUNTER)}) was put on a second "
        "H200: copies within its memory, which stay far below the power limit. A wave in step lies "
        "between two out of step, there and back, which have its power: shares are off their mean. "
        "Where they differ between the two waves, the power itself moved.",
        table(
            (
                *("period, ms", "work", "W", "counter, first wave, % (mean)", "second wave"),
                *("its seconds out of step", "driver's samples, first wave", "second wave"),
            ),
            map(_bracket_row, brackets),
        ),
        "## What each reading is",
        table(
            ("GPU", "reading", "renewed every, ms: median (95 % interval)", "shows"),
            [
                (place, *row)
                for place, each in (("first", records), ("second", counter))
                for row in _readings(each)
            ],
        ),
        "## What a call costs",
        "Of the second GPU, under load, in the time of the one who waits.",
        table(("reading", "median, µs", "99 %, µs"), map(_cost, counter["cost"])),
        "## How long to look",
        "Energies between changes of the counter, over so many seconds of a load, beside its mean "
        "power: 95 % are within these shares, which hold how the power moved by itself.",
        table(
            ("load", *(f"{length:g} s" for length in LENGTHS_S)),
            (
                _lengths("steady", [row for row in rows if row.wave == STEADY]),
                _lengths("waves out of step", apart),
            ),
        ),
    )


def _most(errors: Errors) -> float:
    return max(-errors.low, errors.high)


def _number(share: float) -> str:
    """A share in percent, where the sign of percent follows later."""
    return percent(share).removesuffix(" %")


def _range(errors: Errors) -> str:
    return f"{_number(errors.low)} to {percent(errors.high)}"


def _shares(errors: Errors) -> str:
    return f"{_number(errors.low)} to {_number(errors.high)} ({_number(errors.mean)})"


def _row(row: MapRow) -> tuple[str, ...]:
    """A row of the table of the map."""
    steady = row.wave == STEADY
    return (
        *(("steady", "") if steady else (f"{1e3 * row.wave.period_s:.1f}", f"{row.wave.duty:g}")),
        *(_shares(off) for off in (row.errors[name] for name, *_ in _SHOWN)),
        _range(row.errors[ENERGY]).removesuffix(" %"),
    )


def _cost(record: Mapping[str, Any]) -> tuple[str, str, str]:
    """A row of the table of costs."""
    median, highest = (f"{record['cost'][f'wall_{end}_us']:,.0f}" for end in ("p50", "p99"))
    return record["reading"], median, highest


def _brackets(records: Records) -> Iterator[Bracket]:
    """What the first GPU's turns of the counter say."""
    for edges in records["counter-edges"]:
        if edges["gpu"] == 0:
            changes = _changes(records, "counter", edges["turn"])
            yield bracket(COUNTER_TURNS[edges["turn"]], changes, edges["began_unix_s"])


def _of_counter(brackets: Sequence[Bracket]) -> str:
    """How far the counter and the samples are off in step, by the wave that is less so of two."""
    in_looks = [row for row in brackets if row.wave.period_s < 2 * LOOKS_S]
    counter, samples = (
        max(min(map(_most, row.in_step[name])) for row in in_looks) for name in (ENERGY, SAMPLES)
    )
    apart = max(_most(row.apart[ENERGY]) for row in in_looks)
    means = [each.mean for row in brackets if row not in in_looks for each in row.in_step[ENERGY]]
    return (
        f"With a period of 20 ms, its seconds are up to {100 * counter:.1f} % off by the "
        f"phase, in the quieter of two waves, where the samples are {100 * samples:.1f} % "
        f"off; out of step they scatter by {100 * apart:.1f} %. With a period of 100 ms, after "
        f"which the counter is renewed, its mean over all phases is {_number(min(means))} to "
        f"{percent(max(means))} off."
    )


def _bracket_row(row: Bracket) -> tuple[str, ...]:
    first, second = map(_shares, row.in_step[ENERGY])
    period = f"{1e3 * row.wave.period_s:.1f}", f"{row.wave.duty:g}", f"{row.mean_w:.0f}"
    return *period, first, second, _shares(row.apart[ENERGY]), *map(_shares, row.in_step[SAMPLES])


def _readings(records: Records) -> Iterator[tuple[str, str, str]]:
    """Rows of the table of readings, of the first GPU."""
    seen = {each["reading"]: each["seen"] for each in records["sensor-raw"] if each["gpu"] == 0}
    window = fit_window(seen[POWER], seen[SAMPLES])
    shows = {
        POWER: f"a mean over {1e3 * window.window_s:.0f} ms ({1e3 * window.low_s:.0f} to "
        f"{1e3 * window.high_s:.0f})",
        ENERGY: "energy since the driver was loaded",
        SAMPLES: f"a look of {1e3 * _look(records).length_s:.1f} ms or less: an edge of the load "
        "takes so long to pass"
        if "map-raw" in records
        else "a short look",
    }
    for name, about in shows.items():
        middle, low, high = (
            f"{1e3 * each:.1f}" for each in update_period([at for at, _ in seen[name]])
        )
        yield name, f"{middle} ({low} to {high})", about


def _look(records: Records) -> Look:
    """How the samples see the edges of the wave of 20 ms, of the first GPU."""
    (turn,) = (turn for turn, waves in enumerate(TURNS) if IN_STEP in waves)
    (edges,) = (
        each["edges"] for each in records["map-edges"] if (each["turn"], each["gpu"]) == (turn, 0)
    )
    first = sum(wave.count for wave in TURNS[turn][: TURNS[turn].index(IN_STEP)])
    of_wave = edges[2 * first : 2 * (first + IN_STEP.count)]
    return fit_look(_changes(records, "map", turn)[SAMPLES], of_wave[::2], of_wave[1::2])


def _lengths(name: str, rows: Sequence[MapRow]) -> tuple[str, ...]:
    return (
        name,
        *(
            f"{100 * fmean(row.by_length[length] for row in rows):.1f} %"
            if all(length in row.by_length for row in rows)
            else "–"
            for length in LENGTHS_S
        ),
    )


def _figure(name: str, rows: Sequence[MapRow]) -> str:
    """The errors by the period of waves that work half of the time, as SVG."""
    half = sorted(
        (row for row in rows if row.wave != STEADY and row.wave.duty == 0.5),
        key=lambda row: row.wave.period_s,
    )
    with style.styled(name):
        figure = Figure(figsize=(2 * style.COLUMN_IN, 0.8 * style.COLUMN_IN))
        axes = figure.subplots()
        for place, (reading, label, colour, marker) in enumerate(_SHOWN):
            periods_ms = [1e3 * row.wave.period_s * 1.015 ** (place - 1) for row in half]
            off = [row.errors[reading] for row in half]
            axes.vlines(
                periods_ms,
                [100 * each.low for each in off],
                [100 * each.high for each in off],
                color=colour,
                linewidth=1.6,
            )
            means = [100 * each.mean for each in off]
            axes.plot(periods_ms, means, marker, color=colour, markersize=2.8, label=label)
        axes.axhline(0, color=style.GREY, linewidth=0.6)
        axes.set_xscale("log")
        ticks = (2, 5, 10, 20, 50, 100, 200, 400)
        axes.set_xticks(ticks, [str(each) for each in ticks])
        axes.minorticks_off()
        axes.set_xlabel("period of the load, ms (log scale)")
        axes.set_ylabel("off the energy counter, %")
        axes.legend(loc="upper left", ncols=1)
        return svg(figure, name)
