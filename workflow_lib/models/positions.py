"""The length of a model's sequences, and the rotary positions of its tokens."""

from __future__ import annotations

from typing import Any

from workflow_lib.models.config_json import ConfigJson

#: keys and values of a model file
Plain = dict[str, Any]

#: the longest sequence unless asked for, that of Llama 3's training
_SEQUENCE_LENGTH = 8192


def sequence(config: ConfigJson, wanted: int | None, window: int | None) -> Plain:
    """The length to train with: at most the window's length, beyond which attention
    would change."""
    longest = config.whole("max_position_embeddings", 2048)
    length = min(longest, window or longest, _SEQUENCE_LENGTH) if wanted is None else wanted
    if window is not None and length > window:
        raise config.refuse(
            "sliding_window",
            f"attention looks back over {window} tokens, and windows are not implemented; "
            f"sequences of up to {window} tokens are the same without: use --sequence-length "
            f"{window} or less",
        )
    if wanted is None and length < longest:
        config.notes.append(
            f"max_position_embeddings is {longest}: sequences have {length} tokens unless "
            "--sequence-length says more"
            + ("" if window is None else f", which sliding_window {window} does not allow")
        )
    if length > longest:
        config.notes.append(
            f"max_position_embeddings is {longest}: sequences of {length} tokens are longer than "
            "the model was made for"
        )
    return {"sequence_length": length} | ({} if window is None else {"sliding_window": window})


def rotary(config: ConfigJson, base: float, share: float = 1.0) -> Plain:
    """The base, scaling and share of a head of rotary positions, from the keys of transformers 4 or
    5."""
    given = {**config.mapping("rope_scaling"), **config.mapping("rope_parameters")}
    key = "rope_parameters" if config.take("rope_parameters") else "rope_scaling"
    share = given.pop("partial_rotary_factor", config.take("partial_rotary_factor", share))
    share = config.as_number("partial_rotary_factor", share)
    base = config.number("rope_theta", base)
    if "rope_theta" in given:
        base = config.as_number(key, given.pop("rope_theta"))
    kind, old = given.pop("rope_type", None), given.pop("type", None)
    kind = kind or old or "default"
    names = {
        "default": {},
        "linear": {"factor": "factor"},
        "llama3": {
            "factor": "factor",
            "low_freq_factor": "low_frequency_factor",
            "high_freq_factor": "high_frequency_factor",
            "original_max_position_embeddings": "original_length",
        },
    }.get(kind)
    if names is None:
        raise config.refuse(key, f"{kind}: the engine stretches positions as linear and llama3 do")
    if unknown := sorted(given.keys() - names.keys()):
        raise config.refuse(key, f"{unknown[0]} is not a part of {kind} positions")
    if missing := sorted(names.keys() - given.keys()):
        raise config.refuse(key, f"{kind} positions need {missing[0]}")
    plain: Plain = {"rotary_base": base, "rotary_share": share}
    if not names:
        return plain
    scaling: Plain = {"kind": kind}
    scaling |= {name: config.as_number(key, given[each]) for each, name in names.items()}
    if "original_length" in scaling:
        scaling["original_length"] = int(scaling["original_length"])
    return plain | {"rotary_scaling": scaling}
