"""OpenMetrics 1.0 text: https://prometheus.io/docs/specs/om/open_metrics_spec/"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Family(NamedTuple):
    """A metric: its name (a counter's without ``_total``), kind, unit and meaning."""

    name: str
    #: gauge or counter: node_exporter reads Prometheus' older text format, which has no other kinds
    kind: str
    #: the end of the name; "" for a count
    unit: str
    about: str


#: a metric, its labels and its value
Sample = tuple[Family, Mapping[str, str], float]


def text_of(families: Iterable[Family], samples: Iterable[Sample]) -> str:
    """Samples as text, in the order of ``families``. A family without a sample is left out."""
    of_family: dict[Family, list[str]] = {family: [] for family in families}
    for family, labels, value in samples:
        of_family[family].append(_line(family, labels, value))
    lines = []
    for family, its_lines in of_family.items():
        if its_lines:
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines += [f"# UNIT {family.name} {family.unit}"] if family.unit else []
            lines += [f"# HELP {family.name} {family.about}", *its_lines]
    return "\n".join([*lines, "# EOF\n"])


def _line(family: Family, labels: Mapping[str, str], value: float) -> str:
    text = ",".join(f'{name}="{_escaped(label)}"' for name, label in labels.items())
    total = "_total" if family.kind == "counter" else ""
    return f"{family.name}{total}{{{text}}} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
