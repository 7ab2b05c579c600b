"""Which axis of the layout a process group belongs to, and which links it uses."""

from __future__ import annotations

import re
from collections.abc import Sequence

from workflow_lib.analysis.traces.names import ALL_TO_ALL, words
from workflow_lib.records.cell_axes import AXES
from workflow_lib.records.degrees import NESTED, Degrees, coordinates

INTRA_NODE, INTER_NODE = "intra_node", "inter_node"

#: axis → words in a process group's description, as DeviceMesh, Megatron and DeepSpeed write them
_DESCRIBED = {
    degree.upper(): {degree, AXES[degree].field.axis.description.partition("-")[0]}
    for degree in (*NESTED, "ep")
}
_DESCRIBED["DP"] |= {"fsdp", "shard", "replicate"}
_ELIDED = re.compile(r"\[([\d, ]+), ?\.\.\.,? ?(\d+)?\]")


def listed_ranks(text: str | None, size: int | None) -> tuple[int, ...] | None:
    """Ranks as torch lists them: ``[0, 1]``, or ``[0, 2, ..., 126]`` where they are many.

    Ranks left out are filled in if those listed are evenly spaced and fit the group's size.
    Otherwise, and for any other text, the result is None.
    """
    if text is None:
        return None
    if re.fullmatch(r"\[\d+(?:, ?\d+)*\]", text):
        return tuple(int(rank) for rank in re.findall(r"\d+", text))
    elided = _ELIDED.fullmatch(text)
    if elided is None or size is None:
        return None
    shown = [int(rank) for rank in re.findall(r"\d+", elided[1])]
    if len(shown) < 2 or size < len(shown):
        return None
    stride = shown[1] - shown[0]
    whole = tuple(shown[0] + stride * i for i in range(size))
    fits = list(whole[: len(shown)]) == shown and elided[2] in (None, str(whole[-1]))
    return whole if fits else None


def axis_of(
    ranks: Sequence[int] | None,
    description: str | None,
    kind: str,
    rank: int,
    degrees: Degrees | None,
) -> str | None:
    """The axes of the layout along which ``ranks`` and this rank differ, as in "TP" or "TP+PP".

    Replicas that share one set of experts are "EP". If experts are spread over all replicas, EP and
    DP have the same ranks: then all-to-all is "EP" and the rest "DP", unless the group's
    description says which. Without degrees or ranks the description decides; the result is None if
    it names no axis. A group of one rank has no axis.
    """
    described = _described(description or "")
    if ranks is None or degrees is None or len(ranks) < 2:
        return described if ranks is None or len(ranks) > 1 else None
    involved = {rank, *ranks}
    if not involved <= set(range(degrees.world_size)):
        return described
    places = [coordinates(member, degrees) for member in involved]
    axes = [axis for axis in NESTED if len({getattr(at, axis) for at in places}) > 1]
    if axes == ["dp"] and len({at.dp // degrees.ep for at in places}) == 1:
        if degrees.ep < degrees.dp:
            return "EP"
        if described in ("EP", "DP"):
            return described
        return "EP" if kind == ALL_TO_ALL else "DP"
    return "+".join(axes).upper()


def _described(description: str) -> str | None:
    """The axes that a group's description names; None if it names none."""
    named = words(description)
    axes = [axis for axis, of_axis in _DESCRIBED.items() if not of_axis.isdisjoint(named)]
    if len(axes) > 1 and "and" not in named:
        # Megatron's EXPERT_DATA_PARALLEL_GROUP are the replicas of the same experts.
        axes = [axis for axis in axes if axis != "EP"]
    return "+".join(axes) or None


def fabric_of(ranks: Sequence[int] | None, ranks_per_node: int | None) -> str | None:
    """Whether ``ranks`` lie on one node or on several; None where that is not known."""
    if not ranks or not ranks_per_node:
        return None
    return INTRA_NODE if len({rank // ranks_per_node for rank in ranks}) == 1 else INTER_NODE
