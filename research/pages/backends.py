"""The page of what each backend runs: ``reference/backends.md``, from the code that refuses cells.

Its rows are cells of two ranks along each axis that they name; tests/training/test_claims.py sees
to it that a row which says "yes" is one that a test has trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from research.plain import PLAIN
from workflow_lib.cells import Sweep, expand_study, view_of
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.training import Backend
from workflow_lib.study import Study
from workflow_lib.trainers import capabilities

TITLE = """\
# Backends

This page shows what DeepSpeed and torch (FSDP2 and `torch.distributed.pipelining`) run, and why
they refuse the rest. With `backend: auto` a cell gets DeepSpeed if it can run the cell, otherwise
torch. If neither can, the cell is *infeasible*, and the plan says why.
[Training](../explanation/training.md) explains what is trained.
"""

COMBINATIONS = """\
`workflow_lib/trainers/capabilities.py` decides each row. Degrees that are not named are 1. Other
options are those of the study: bf16, ZeRO-1, no overlap, no recomputation. EP distributes experts
over replicas, so it needs DP. *Interleaved* and *zero-bubble-v* have two chunks on each pipeline
rank; *uneven* has stages of different length.
"""

SWEEP = """\
The cells of `config/sweeps/parallelism.yaml`, which repeats the study's figure 4, as the planner
resolves them on each platform: the backend that runs a cell, or why it is infeasible.
"""


@dataclass(frozen=True)
class Combination:
    """A row: what it is called, and what its cell has that others do not."""

    name: str
    degrees: Degrees
    #: training options by name, those only that the row is about
    options: dict[str, Any] = field(default_factory=dict)
    #: the model has experts
    experts: bool = False

    def refusal(self, backend: Backend, study: Study) -> str | None:
        """Why the backend does not run it; None where it does."""
        name = "mixtral-tiny" if self.experts else "llama3-tiny"
        model: Model = study.models[name].record(name)
        routing: dict[str, Any] = {"routing": "dropless"} if self.experts else {}
        training = replace(PLAIN, backend=backend, **{**routing, **self.options})
        return capabilities.refusal(self.degrees, training, model)


#: what each word of a row's name, between × and commas, gives its cell
_DEGREES: dict[str, dict[str, Any]] = {
    **{"TP": {"tp": 2}, "CP": {"cp": 2}, "PP": {"pp": 2}, "DP": {"dp": 2}},
    "EP": {"dp": 2, "ep": 2},
    "two replicas of each expert": {"dp": 4},
    "uneven": {"stage_layers": (1, 3)},
    "interleaved": {"virtual_stages": 2},
    "zero-bubble": {"schedule": "zero-bubble"},
    "zero-bubble-v": {"schedule": "zero-bubble-v", "virtual_stages": 2},
}
_OPTIONS: dict[str, dict[str, Any]] = {
    **{f"ZeRO-{stage}": {"zero_stage": stage} for stage in range(4)},
    **{precision: {"precision": precision} for precision in ("bf16", "fp32", "fp8")},
    "sequence parallelism": {"sequence_parallel": True},
    "no sequence parallelism": {"sequence_parallel": False},
    "overlap": {"overlap": True},
    **{kind: {"recomputation": kind} for kind in ("full", "selective")},
    **{f"{kind} recomputation": {"recomputation": kind} for kind in ("full", "selective")},
    "compiled": {"compile": True},
    "balanced": {"routing": "balanced"},
    "balancing loss": {"balancing_loss": 0.01},
    "LoRA": {"workload": "lora", "lora_rank": 4},
    "inference": {"workload": "inference", "generated_tokens": 12, "zero_stage": 0},
    **{"one GPU": {}, "experts": {}},
}


def _row(name: str, *others: str) -> Combination:
    """The row of a name, whose cell has what the name's words say, and other words besides."""
    words = [*name.replace(" × ", ", ").split(", "), *others]
    degrees, options = (
        {key: value for word in words for key, value in of.get(word, {}).items()}
        for of in (_DEGREES, _OPTIONS)
    )
    if unknown := [word for word in words if word not in {**_DEGREES, **_OPTIONS}]:
        raise ValueError(f"{name}: nothing is known of {unknown}")
    return Combination(name, Degrees(**degrees), options, bool({"EP", "experts"} & {*words}))


def _rows(names: str, *others: str) -> list[Combination]:
    """The rows of names between semicolons."""
    return [_row(name, *others) for name in names.split("; ")]


def combinations() -> Iterator[tuple[str, list[Combination]]]:
    """The rows by section."""
    four = ("DP", "TP", "PP", "EP")
    yield (
        "Degrees",
        _rows(
            "TP; PP; DP; EP; EP, two replicas of each expert; TP × PP; TP × DP; TP × EP; PP × DP; "
            "PP × EP; TP × PP × DP; TP × PP × EP"
        ),
    )
    stages = ("ZeRO-0, bf16", "ZeRO-0, fp32", "ZeRO-1", "ZeRO-2", "ZeRO-3")
    sharded = [_row(f"{name} × {stage}") for name in ("DP", "PP × DP", "EP") for stage in stages]
    yield "ZeRO", [*sharded, _row("TP × DP × ZeRO-3")]
    zero_bubble = [
        _row(f"{name}, {schedule}{overlap}", *others)
        for schedule in ("zero-bubble", "zero-bubble-v")
        for name, overlap, *others in (
            *(("PP", ""), ("PP", ", overlap"), ("PP × DP", ", overlap")),
            ("TP × PP", ", overlap", "sequence parallelism"),
        )
    ]
    interleaved = "PP, interleaved; PP × DP, interleaved; PP × DP × ZeRO-3, interleaved"
    yield "Stages", [*_rows(f"PP, uneven; {interleaved}"), *zero_bubble]
    sequence = "sequence parallelism"
    yield sequence.capitalize(), _rows("TP; TP × PP; TP × DP × ZeRO-3; TP × EP", sequence)
    yield (
        "Context parallelism",
        _rows(
            "CP; CP × ZeRO-3; CP × DP; TP × CP, sequence parallelism; CP × PP; "
            "CP, full recomputation; CP, compiled; CP, experts"
        ),
    )
    overlapped = (
        *_rows("one GPU; DP × ZeRO-0, fp32; DP × ZeRO-1, bf16; DP × ZeRO-1, fp32", "overlap"),
        *_rows("DP × ZeRO-2; DP × ZeRO-3", "overlap"),
        *_rows("TP", "overlap", "no sequence parallelism"),
        *_rows("TP, sequence parallelism; PP; PP × DP; PP, interleaved; EP", "overlap"),
    )
    yield "Overlap", list(overlapped)
    kinds = ("full", "selective")
    yield "Recomputation", [_row(f"{name}, {kind}") for kind in kinds for name in four]
    yield "Compilation", [_row(name, "compiled") for name in four]
    narrow = (
        *_rows("one GPU; DP × ZeRO-0; DP × ZeRO-1; DP × ZeRO-2; DP × ZeRO-3", "fp8"),
        *_rows("DP × ZeRO-3, overlap; PP; PP × DP; PP, interleaved", "fp8"),
        *_rows("PP, zero-bubble", "fp8", "overlap"),
        *_rows("CP; TP; EP; DP, full recomputation; DP, selective recomputation", "fp8"),
        *_rows("DP, compiled; PP, compiled; LoRA, DP", "fp8"),
    )
    yield "fp8", list(narrow)
    routed = "balanced, DP; balanced, TP; balanced, PP; balanced, EP"
    yield "Routing", _rows(f"{routed}; balancing loss, EP; balancing loss, PP", "experts")
    workloads = [_row(f"{name}, {degree}") for name in ("LoRA", "inference") for degree in four]
    compiled = [_row(f"LoRA, {degree}, compiled") for degree in ("DP", "TP", "PP", "CP")]
    yield "Workloads", [*workloads, *compiled]


def answers(study: Study) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Section by section the rows of the page: the combination, and a backend's answer each."""
    for title, rows in combinations():
        yield (
            title,
            [
                (
                    row.name,
                    *(row.refusal(backend, study) or "yes" for backend in capabilities.BACKENDS),
                )
                for row in rows
            ],
        )


def sweep_rows(study: Study) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Platform by platform the cells of the parallelism sweep, and what becomes of them."""
    views, spec = expand_study(study), study.sweeps["parallelism"]
    for platform in spec.platforms:
        yield platform, _cells(views[view_of("parallelism", spec, platform)])


def _cells(sweep: Sweep) -> list[tuple[str, ...]]:
    return [
        (
            planned.cell.model.name,
            f"`{planned.cell.parallelism}`",
            str(planned.cell.training.zero_stage),
            planned.reason or planned.cell.training.backend,
        )
        for planned in sweep.cells
    ]
