"""The measures of inference, separately for prefill (prompts) and decode (generated tokens)."""

from __future__ import annotations

from collections.abc import Sequence

from workflow_lib.analysis import metrics
from workflow_lib.analysis.known import Known, Values, known
from workflow_lib.analysis.nodes import Node
from workflow_lib.analysis.steps import Steps
from workflow_lib.records import Cell

#: A reading is the mean power of about the last second (docs/explanation/measurement.md), so half a
#: second of each phase is counted in the next: a tenth of the shortest phase that has an energy.
SHORTEST_PHASE_S = 5.0


def generation_values(cell: Cell, steps: Steps, energy: Known, nodes: Sequence[Node]) -> Values:
    """The measures of inference; ``energy`` is the run's ``energy_j``. Empty if the cell generates
    nothing.

    The prefill chooses the first token of a sequence, so decode generates one token fewer than the
    cell asks for.
    """
    if not steps.phases:
        return {}
    training, model = cell.training, cell.model
    gpus, batch = cell.degrees.world_size, training.global_batch_size
    prompt = model.sequence_length - training.generated_tokens
    later = training.generated_tokens - 1

    prefill_s, decode_s = (
        metrics.median(window.duration_s for window in steps.phases[phase])
        for phase in ("prefill", "decode")
    )
    found: Values = {
        "prefill_time_s": known(prefill_s),
        "time_to_first_token_s": known(prefill_s),
        "prefill_tokens_per_s_per_gpu": known(batch * prompt / prefill_s / gpus),
        "prefill_energy_j": _energy_j(energy, nodes, "prefill", prefill_s),
    }
    if later == 0:
        reason = "each sequence generates one token, which its prefill chooses"
        names = (
            *("decode_time_s", "decode_tokens_per_s_per_gpu", "time_per_output_token_s"),
            *("decode_energy_j", "decode_tokens_per_j", "decode_energy_per_token_j"),
        )
        return found | dict.fromkeys(names, (None, reason))
    decode_j, reason = _energy_j(energy, nodes, "decode", decode_s)
    found |= {
        "decode_time_s": known(decode_s),
        "time_per_output_token_s": known(decode_s / later),
        "decode_tokens_per_s_per_gpu": known(batch * later / decode_s / gpus),
        "decode_energy_j": known(decode_j, reason),
    }
    tokens = batch * later * len(steps.phases["decode"])
    if decode_j is not None and decode_j <= 0:
        decode_j, reason = None, f"decode_energy_j is {decode_j}, so nothing can be divided by it"
    return found | {
        "decode_tokens_per_j": known(None if decode_j is None else tokens / decode_j, reason),
        "decode_energy_per_token_j": known(None if decode_j is None else decode_j / tokens, reason),
    }


def _energy_j(energy: Known, nodes: Sequence[Node], phase: str, duration_s: float) -> Known:
    """The energy in one phase, in J, of all GPUs that report power. It is null where the run's
    energy is null, and where phases are too short to separate their power."""
    if duration_s < SHORTEST_PHASE_S:
        return None, (
            f"a step's {phase} takes {duration_s:.3g} s; boards average power over about a second, "
            f"so that phases under {SHORTEST_PHASE_S:g} s cannot be told apart: use more sequences "
            "or longer ones"
        )
    if energy[0] is None:
        return energy
    return sum(node.phase_energy_j[phase] for node in nodes), ""
