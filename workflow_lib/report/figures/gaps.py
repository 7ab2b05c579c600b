"""Why a kind of figure is not drawn."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from workflow_lib.report.cells import Row


def reasons_of_gpus(gpus: Iterable[Row], columns: Sequence[str]) -> str:
    """Why no row of GPUS has any of ``columns``: the three most frequent reasons."""
    given: Counter[str] = Counter()
    rows = 0
    for gpu in gpus:
        rows += 1
        reasons: dict[str, str] = json.loads(gpu["missing_reasons"] or "{}")
        given.update({reasons[column] for column in columns if column in reasons})
    if not rows:
        return "no run left readings of a GPU"
    named = [reason for reason, _ in sorted(given.items(), key=lambda item: (-item[1], item[0]))]
    return "; ".join(named[:3]) or "no GPU has a value of these"
