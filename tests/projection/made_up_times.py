"""Made-up records of ``research/parts_on_gpus.py``, on lines that are known."""

from __future__ import annotations

from typing import Any

#: received bytes of a call
SIZES = [2.0**power for power in range(20, 31, 2)]
#: latency in s and bytes/s
EXCHANGE, OPTIMISER = (20e-6, 300e9), (50e-6, 3e12)
_CONDITIONS = {"gpu": "NVIDIA H200", "gpus": 2, "torch": "2.11.0", "begun": "2026-11-24T18:45Z"}


def record(collective: str, size: float, seconds: float, ranks: int = 2) -> dict[str, Any]:
    """A record of three repeats whose median is ``seconds``."""
    return {
        **_CONDITIONS,
        **{"part": "collective", "collective": collective, "ranks": ranks},
        **{"message_bytes": 2 * size, "received_bytes": size},
        "repeats_s": [0.9 * seconds, seconds, 1.5 * seconds],
    }


def records(slower: float = 1.0) -> list[dict[str, Any]]:
    """Of every exchange over two ranks, ``slower`` times as slow as EXCHANGE, and the optimiser."""
    latency_s, bytes_per_s = EXCHANGE
    found = [
        record(name, size, slower * (latency_s + size / bytes_per_s))
        for name in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send/recv")
        for size in SIZES
    ]
    latency_s, bytes_per_s = OPTIMISER
    for weights in (2**24, 2**26, 2**28, 2**30):
        seconds = latency_s + 26 * weights / bytes_per_s
        found.append(
            {
                **_CONDITIONS,
                **{"part": "optimiser", "parameters": weights, "bytes": 26 * weights},
                "clip_s": [0.25 * seconds, 0.25 * seconds],
                "step_s": [0.75 * seconds, 0.75 * seconds],
            }
        )
    return found
