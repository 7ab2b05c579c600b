"""Characterisations and advice in words."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from tabulate import tabulate

from workflow_lib.intervals.differences import Interval
from workflow_lib.placement.advice import WORTH, Advice
from workflow_lib.placement.effects import Place, as_share
from workflow_lib.placement.limits import MOST_LOST
from workflow_lib.placement.limits import WORTH as LIMITS_WORTH
from workflow_lib.placement.readings import place_name
from workflow_lib.placement.slots import Characterisation
from workflow_lib.records import cell_axes
from workflow_lib.records.cell import Cell
from workflow_lib.words import counted

#: a share of clocks with a wider interval is hardly known
VAGUE = 0.5

_SIMULATED = (
    "GPU readings were simulated: this shows how the command works, and says nothing of GPUs."
)


def percent(interval: Interval, digits: int = 1) -> str:
    """A share and its interval."""
    value, low, high = (
        f"{100 * end:+.{digits}f}" for end in (interval.estimate, interval.low, interval.high)
    )
    return f"{value} % ({low} to {high})".replace("-", "−")


def _gained(interval: Interval) -> str:
    """A gain and its interval: without a sign where there is none of the other kind."""
    return percent(interval).replace("+", "") if interval.low > 0 else percent(interval)


def degrees_c(interval: Interval) -> str:
    """A difference of temperatures and its interval."""
    ends = (f"{value:+.1f}" for value in (interval.estimate, interval.low, interval.high))
    value, low, high = ends
    return f"{value} °C ({low} to {high})".replace("-", "−")


def slots_table(characterisation: Characterisation) -> list[dict[str, str]]:
    """A line a GPU, the slowest first."""
    lines = []
    for row in sorted(characterisation.rows, key=lambda row: row["clock_effect"]):
        place: Place = (row["node"], row["gpu"])
        line = {
            "GPU": place_name(place),
            "clock, from the mean": percent(as_share(characterisation.clocks[place]), 2),
            "MHz": f"{row['sm_clock_mean_mhz']:.0f}",
            "temperature, from the mean": degrees_c(characterisation.temperatures[place]),
            "°C": f"{row['temperature_mean_c']:.1f}",
            "power, from the mean": percent(as_share(characterisation.power[place]), 2),
            "W": f"{row['power_mean_w']:.0f}",
        }
        if characterisation.apart.slots:
            line["slot"] = percent(as_share(characterisation.apart.slots[row["gpu"]]), 2)
            line["silicon"] = percent(as_share(characterisation.apart.silicon[place]), 2)
        lines.append(line)
    return lines


def of_emulated(cells: Iterable[Cell]) -> list[str]:
    """What is emulated on the platforms of cells; nothing if nothing is."""
    sentence = cell_axes.emulated_in_words(
        {"platform": cell.hardware.platform, "emulated": cell.emulated} for cell in cells
    )
    return [sentence] if sentence else []


def slots_sentences(characterisation: Characterisation, simulated: bool) -> list[str]:
    """What to read from the table."""
    first = characterisation.rows[0]
    runs = sum(clocks.runs for clocks, _ in characterisation.of_nodes.values())
    at = "at the power cap" if first["at_power_cap"] else "over all time, not all at the power cap"
    sentences = [_SIMULATED] if simulated else []
    sentences.append(
        f"Clocks are means {at}, over {counted(runs, 'run')}. What goes with the "
        "stage is taken away. Intervals hold 90 %."
    )
    threshold = f"{100 * characterisation.threshold:.1f} %"
    if characterisation.behind:
        behind = ", ".join(place_name((row["node"], row["gpu"])) for row in characterisation.behind)
        sentences.append(
            f"Surely more than {threshold} slower than the mean of their peers: {behind}."
        )
    else:
        sentences.append(
            f"No GPU is surely more than {threshold} slower than the mean of its peers."
        )
    if characterisation.apart.why_not:
        sentences.append(
            f"What goes with the GPU and what goes with its slot are one figure here: "
            f"{characterisation.apart.why_not}."
        )
    for nodes, (clocks, temperatures) in characterisation.of_nodes.items():
        if clocks.drift_per_h is not None and temperatures.drift_per_h is not None:
            sentences.append(
                f"Over the runs on {', '.join(nodes)}, what GPUs have in common changed by "
                f"{percent(as_share(clocks.drift_per_h))} of the clock and "
                f"{degrees_c(temperatures.drift_per_h)} an hour."
            )
    for nodes, why in characterisation.left_out.items():
        sentences.append(f"Nothing can be said of {', '.join(nodes)}: {why}.")
    return sentences


def advice_sentences(advice: Advice) -> list[str]:
    """Whether to place, and why."""
    best = advice.best
    sentences = [_SIMULATED] if advice.simulated else []
    sentences += of_emulated([advice.cell])
    if advice.is_unchanged:
        sentences.append(
            "Leave it: no order of these GPUs and no division of layers is surely faster."
        )
    elif advice.is_recommended:
        sentences.append(
            f"Place it: GPUs in the order {_listed(best.order)}, stages of {_listed(best.layers)} "
            f"layers. A step should take {_gained(best.time_gain)} less time, and "
            f"{_gained(best.energy_gain)} less energy. The warmest GPU changes by "
            f"{degrees_c(best.temperature_change_c)}."
        )
    else:
        sentences.append(
            f"Leave it: the best placement, GPUs in the order {_listed(best.order)} and stages of "
            f"{_listed(best.layers)} layers, should gain {_gained(best.time_gain)} of time. The "
            f"lower end has to be above {100 * WORTH:.1f} %."
        )
    if advice.by_work is not None and not advice.is_unchanged:
        sentences.append(
            f"Of that, {_gained(advice.by_work.time_gain)} is from dividing layers by work, as "
            "stage_layers: auto does, whatever the GPUs."
        )
    if advice.move is not None:
        move = advice.move
        sentences.append(
            f"As it is, one layer of stage {move.from_stage} would pay on stage {move.to_stage} if "
            f"the latter's GPUs were {move.needed_ratio:.3f} times as fast or more; they are "
            f"{move.ratio.estimate:.3f} times ({move.ratio.low:.3f} to {move.ratio.high:.3f}). "
            "Between stages of equal work the threshold is 1 + stages / layers."
        )
    sentences.append(_share_sentence(advice))
    sentences += _limits_sentences(advice)
    first, last = (
        time.strftime("%Y-%m-%d %H:%M", time.gmtime(unix_s))
        for unix_s in (advice.first_unix_s, advice.last_unix_s)
    )
    sentences.append(
        f"This rests on {counted(advice.runs, 'run')} from {first} to {last} UTC, on these GPUs "
        "alone: "
        + ", ".join(f"{place_name(place)} {uuid}" for place, uuid in advice.uuids.items())
        + "."
    )
    return sentences


def _share_sentence(advice: Advice) -> str:
    """How much of the clocks' differences comes true, and how to learn it if runs do not tell."""
    share = advice.share
    value, low, high = (f"{100 * end:.0f}" for end in (share.estimate, share.low, share.high))
    sentence = f"By the runs' steps {value} % ({low} to {high}) of what clocks differ comes true."
    if share.high - share.low > VAGUE and advice.move is not None and not advice.is_recommended:
        sentence += (
            " That is too vague to place by: also rotate GPUs in a cell where one stage has taken "
            "a layer from each other stage."
        )
    return sentence


def _limits_sentences(advice: Advice) -> list[str]:
    """Whether limits of power or clocks pay, and why; nothing where no run tried any."""
    sentences = [f"Limits were left out: {why}." for why in advice.limits_left_out]
    limit_advice = advice.limits
    if limit_advice is None:
        return sentences
    levels, alone = limit_advice.levels, limit_advice.alone
    unit, what = levels.lever.unit, f"{levels.lever.name}s"
    if limit_advice.is_unchanged or alone.limits is None:
        sentences.append(
            f"Leave the {what} as they are: with any lower one, the longest stage takes longer."
        )
    else:
        listed = f"{what} of {_listed(alone.limits.values)} {unit} for GPUs 0 to"
        listed += f" {len(alone.limits.values) - 1} of a node"
        energy, time_gain = _gained(alone.energy_gain), _gained(alone.time_gain)
        gains = f"A step should then take {energy} less energy and {time_gain} less time."
        if limit_advice.is_recommended:
            sentences.append(f"Limit GPUs: set {listed}. {gains}")
        else:
            sentences.append(
                f"Leave the {what} as they are: the surest others are {listed}. {gains} The lower "
                f"end of one has to be above {100 * LIMITS_WORTH:.1f} %, and that of the other "
                f"above −{-100 * MOST_LOST:.1f} %."
            )
    if limit_advice.is_recommended and advice.is_recommended:
        energy, time_gain = (
            _gained(limit_advice.whole.energy_gain),
            _gained(limit_advice.whole.time_gain),
        )
        sentences.append(
            "That is besides the placement. Both together should take "
            f"{energy} less energy and {time_gain} less time."
        )
    measured = ", ".join(f"{level:.0f}" for level in levels.every)
    sentences.append(
        f"What limits do is from {counted(levels.runs, 'run')} with the same {levels.lever.name} "
        f"for all GPUs: {measured} {unit}."
    )
    return sentences


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def table(lines: Sequence[dict[str, str]]) -> str:
    """Lines as text."""
    return str(tabulate(lines, headers="keys", disable_numparse=True))
