"""Published training runs, as rows of a file state them.

``notes`` consist of parts between semicolons. These parts are read: ``layers=42`` (of a cut model),
``GA=8`` or ``grad-accumulation 8`` or ``grad accum 8`` (micro-batches), ``org X`` (the site), and
the first part, which names the software.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import cached_property

from research.projection.models import Configuration, configuration, published_shape
from workflow_lib.projection.layouts import Shape

_TUNED = re.compile(r"[\s_-]*(LoRA|SFT|fine-tuning)$", re.IGNORECASE)
_OUT_OF_MEMORY = re.compile(r"\bOOM\b|out[ -]of[ -]memory", re.IGNORECASE)
#: parts of notes that describe a single run, and not its series
OF_A_RUN = re.compile(
    r"^(network|system|section|layers=|proxy|published DP|memory|repeated|dp |tok/s|step time"
    r"|GA=|grad|n=|p5|\d+ runs|hidden|exact|HFU)"
)


_MEASURED = ("stated_step_time_s", "stated_tokens_per_s_per_gpu", "stated_tflops_per_gpu")


@dataclass(frozen=True)
class PublishedRun:
    """A row. A value that the source does not state is None."""

    #: its line in the file; the heading is line 1
    line: int
    source: str
    address: str
    gpu: str
    gpus: int
    gpus_per_node: int
    model: str
    sequence_length: int | None
    global_batch: int | None
    micro_batch: int | None
    tp: int | None
    cp: int
    pp: int | None
    stated_virtual_stages: int | None
    stated_dp: int | None
    ep: int | None
    sharding: str
    stated_recomputation: str
    precision: str
    stated_step_time_s: float | None
    stated_tokens_per_s_per_gpu: float | None
    stated_tflops_per_gpu: float | None
    notes: str

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The parts of the notes."""
        return tuple(part.strip() for part in self.notes.split(";") if part.strip())

    @property
    def stack(self) -> str:
        """The software stack: the source's name without its release."""
        words = self.source.replace(",", " ").split()
        return " ".join(word for word in words if not any(c.isdigit() for c in word))

    @property
    def variant(self) -> str:
        """The software, as the first part of the notes names it."""
        return self.parts[0] if self.parts else ""

    @property
    def site(self) -> str:
        """The owner of the machine; the source if the notes do not say."""
        of = re.search(r"\borg ([^;]+)", self.notes)
        return of[1].strip() if of else self.source

    @property
    def workload(self) -> str:
        """``pretraining``, or ``fine-tuning`` of any kind."""
        return "fine-tuning" if _TUNED.search(self.model) else "pretraining"

    @cached_property
    def shape(self) -> Shape | None:
        """The model's dimensions as it ran; None if they are not known."""
        shape = published_shape(_TUNED.sub("", self.model), self.notes)
        return self.configuration.shape(shape) if shape else None

    @cached_property
    def configuration(self) -> Configuration:
        """What the source's configuration files say besides."""
        return configuration(self.source, self.variant, self.model)

    @property
    def layers(self) -> int | None:
        """The number of layers that ran."""
        stated = re.search(r"\blayers=(\d+)", self.notes)
        if stated:
            return int(stated[1])
        return self.shape.layers if self.shape else None

    @property
    def is_twin(self) -> bool:
        """Whether it ran fewer layers than the model has."""
        return self.shape is not None and self.layers != self.shape.layers

    @property
    def layout(self) -> str:
        """``known`` if TP and PP are stated, else ``unknown``."""
        return "known" if self.tp is not None and self.pp is not None else "unknown"

    @property
    def model_known(self) -> str:
        """``yes`` if the model's dimensions are known, else ``no``."""
        return "yes" if self.shape else "no"

    @property
    def virtual_stages(self) -> int | None:
        """Chunks per pipeline rank; a configuration file counts for more than a table's title."""
        return self.configuration.virtual_stages or self.stated_virtual_stages

    @property
    def recomputation(self) -> str:
        """How activations were recomputed; empty if neither row nor configuration says."""
        return self.stated_recomputation or self.configuration.recomputation or ""

    @property
    def includes_evaluation(self) -> bool:
        """Whether its time is that of the whole run of MLPerf's GPT-3, with its evaluations."""
        return "evaluation included" in self.notes and self.model.startswith("GPT-3")

    @property
    def dp(self) -> int | None:
        """Data-parallel replicas: GPUs divided by the other degrees; the stated value if one of
        those is not stated, or if they do not divide the GPUs. (Expert-parallel ranks are replicas
        of all but experts.)"""
        if self.tp is None or self.pp is None:
            return self.stated_dp
        replicas, rest = divmod(self.gpus, self.tp * self.cp * self.pp)
        return self.stated_dp if rest else replicas

    @property
    def micro_batches(self) -> float | None:
        """Micro-batches of a step and replica: from the batch, else as the notes state them; else
        None."""
        if self.global_batch and self.dp and self.micro_batch:
            return self.global_batch / (self.dp * self.micro_batch)
        stated = re.search(r"(?:\bGA=|\bgrad-accumulation |\bgrad accum )(\d+)", self.notes)
        return float(stated[1]) if stated else None

    @property
    def step_time_s(self) -> float | None:
        """Seconds of a step, as stated or from the throughput; else None."""
        return self.stated_step_time_s or self.step_time_by_throughput_s

    @property
    def step_time_by_throughput_s(self) -> float | None:
        """Seconds of a step by the stated throughput; None if that or the batch is not stated."""
        if self.stated_tokens_per_s_per_gpu and self.tokens:
            return self.tokens / (self.stated_tokens_per_s_per_gpu * self.gpus)
        return None

    @property
    def tokens(self) -> int | None:
        """Tokens of a step."""
        if self.global_batch is None or self.sequence_length is None:
            return None
        return self.global_batch * self.sequence_length

    @property
    def out_of_memory(self) -> bool:
        """Whether the run ran out of memory: it has no time, and the notes say so."""
        return self.step_time_s is None and bool(_OUT_OF_MEMORY.search(self.notes))

    @property
    def series_key(self) -> tuple[object, ...]:
        """The values that all rows of a series share: all but the number of nodes, the batch and
        what follows from these."""
        return (
            *(self.source, self.site, self.gpu, self.precision, self.model, self.layers),
            *(self.sequence_length, self.micro_batch, self.tp, self.cp, self.pp),
            *(self.virtual_stages, self.ep, unnumbered(self.sharding), self.recomputation),
            unnumbered(self.variant) if not OF_A_RUN.match(self.variant) else "",
        )

    @cached_property
    def order(self) -> tuple[str, ...]:
        """What runs are sorted by, so that the order of a file's rows changes no result. Measured
        values come last: they order only rows that are alike in all else."""
        return (*self.identity, *(repr(getattr(self, name)) for name in _MEASURED))

    @cached_property
    def identity(self) -> tuple[str, ...]:
        """All that is stated of the run but what was measured."""
        names = [field.name for field in fields(self) if field.name not in ("line", *_MEASURED)]
        return tuple(repr(getattr(self, name)) for name in names)

    @property
    def name(self) -> str:
        """The run in words: model, GPUs, precision and degrees."""
        degrees = "-".join(
            f"{word}{value}"
            for word, value in (
                *(("tp", self.tp), ("cp", self.cp if self.cp > 1 else None), ("pp", self.pp)),
                *(("v", self.virtual_stages), ("dp", self.dp), ("ep", self.ep)),
            )
            if value is not None
        )
        cut = f" ({self.layers} layers)" if self.is_twin else ""
        return f"{self.model}{cut}, {self.gpus}×{self.gpu} {self.precision} {degrees}".strip()


def unnumbered(text: str) -> str:
    """A text with # for each of its numbers."""
    return re.sub(r"[\d.,]+", "#", text)
