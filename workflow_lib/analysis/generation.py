"""The measures of inference: reading prompts and generating tokens, each by itself."""

from __future__ import annotations

from collections.abc import Sequence

from workflow_lib.analysis import metrics
from workflow_lib.analysis.nodes import Node
from workflow_lib.analysis.run_row import RunRow
from workflow_lib.analysis.steps import Steps

#: A reading is the mean power of about the last second (docs/explanation/measurement.md), so that
#: half a second of each phase is seen in the next: a tenth of the shortest phase that counts.
SHORTEST_PHASE_S = 5.0


def add_generation(row: RunRow, steps: Steps, nodes: Sequence[Node]) -> None:
    """Set them. ``add_power`` has been called before.

    The prefill chooses a sequence's first token, so that decoding generates one fewer than the cell
    asks for.
    """
    training, model = row.cell.training, row.cell.model
    gpus, batch = row.cell.degrees.world_size, training.global_batch_size
    prompt = model.sequence_length - training.generated_tokens
    later = training.generated_tokens - 1

    prefill_s, decode_s = (
        metrics.median(window.duration_s for window in steps.phases[phase])
        for phase in ("prefill", "decode")
    )
    row.set("prefill_time_s", prefill_s)
    row.set("time_to_first_token_s", prefill_s)
    row.set("prefill_tokens_per_s_per_gpu", batch * prompt / prefill_s / gpus)
    prefill_j, reason = _energy_j(row, nodes, "prefill", prefill_s)
    row.set("prefill_energy_j", prefill_j, reason)

    if later == 0:
        for name in (
            *("decode_time_s", "decode_tokens_per_s_per_gpu", "time_per_output_token_s"),
            *("decode_energy_j", "decode_tokens_per_j"),
        ):
            row.set(name, None, "each sequence generates one token, which its prefill chooses")
        return
    row.set("decode_time_s", decode_s)
    row.set("time_per_output_token_s", decode_s / later)
    row.set("decode_tokens_per_s_per_gpu", batch * later / decode_s / gpus)
    decode_j, reason = _energy_j(row, nodes, "decode", decode_s)
    row.set("decode_energy_j", decode_j, reason)
    tokens = batch * later * row.values["measured_steps"]
    if decode_j is not None and decode_j <= 0:
        decode_j, reason = None, f"decode_energy_j is {decode_j}, by which nothing can be divided"
    row.set("decode_tokens_per_j", None if decode_j is None else tokens / decode_j, reason)


def _energy_j(
    row: RunRow, nodes: Sequence[Node], phase: str, duration_s: float
) -> tuple[float | None, str]:
    """The energy of all GPUs that report power in one phase; null wherever ``energy_j`` is, and
    where phases are so short that each other's power is mixed into theirs.
    """
    if duration_s < SHORTEST_PHASE_S:
        return None, (
            f"a step's {phase} takes {duration_s:.3g} s; boards average power over about a second, "
            f"so that phases under {SHORTEST_PHASE_S:g} s cannot be told apart: use more sequences "
            "or longer ones"
        )
    if row.values["energy_j"] is None:
        return None, row.reasons["energy_j"]
    return sum(node.phase_energy_j[phase] for node in nodes), ""
