"""The tokens that a step trains on: the same for every layout of a cell.

A step's global batch is drawn from the seed and the step's number; each replica takes its share.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_json
from workflow_lib.records.reading import shown
from workflow_lib.trainers.native.context_parallel import chunks_of, cut
from workflow_lib.trainers.native.mesh import Mesh


class DataError(ValueError):
    """The tokens cannot be used for training."""


class Source(Protocol):
    """Something that yields sequences."""

    @property
    def sha256(self) -> str | None:
        """The checksum of a text's tokens, if this rank compared it; None otherwise."""
        ...

    def sequence(self, seed: int, step: int, index: int, length: int) -> np.ndarray[Any, Any]:
        """Sequence ``index`` of a step's global batch, as [length] ids."""
        ...


@dataclass(frozen=True)
class SyntheticTokens:
    """Ids drawn uniformly from the vocabulary, so that there is nothing to learn."""

    vocabulary_size: int

    @property
    def sha256(self) -> None:
        return None

    def sequence(self, seed: int, step: int, index: int, length: int) -> np.ndarray[Any, Any]:
        generator = np.random.default_rng((seed, step, index))
        return generator.integers(self.vocabulary_size, size=length, dtype=np.int64)


class TokenFile:
    """A memory-mapped file of tokens, as ``workflow_lib.trainers.native.tokenize`` writes it."""

    def __init__(
        self, description: Path, vocabulary_size: int, length: int, compare: bool = False
    ) -> None:
        """Open the file that ``description`` (a tokens.json) describes; with ``compare``, compare
        its checksum with the stated one.

        Raises DataError if it is missing, damaged, too short for one sequence of ``length`` ids, or
        made with a larger vocabulary than the model's.
        """
        try:
            plain = read_json(description)
            if plain["dtype"] not in ("uint16", "uint32"):
                raise ValueError(f"dtype is {shown(plain['dtype'])}, expected uint16 or uint32")
            dtype, tokens = np.dtype(plain["dtype"]), int(plain["tokens"])
            vocabulary = int(plain["vocabulary_size"])
            stated = plain.get("sha256")
        except FileNotFoundError:
            raise DataError(
                f"{description}: no such file; make it with "
                "python -m workflow_lib.trainers.native.tokenize"
            ) from None
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{description}: not a description of tokens ({error}); tokenize again"
            ) from None
        self.path = description.with_name("tokens.bin")
        if not self.path.exists():
            raise DataError(
                f"{self.path}: no such file, which {description.name} describes; tokenize again"
            )
        size = self.path.stat().st_size
        if size != tokens * dtype.itemsize:
            raise DataError(
                f"{self.path}: has {size} bytes, but {description.name} states "
                f"{tokens * dtype.itemsize}; tokenize again"
            )
        if vocabulary > vocabulary_size:
            raise DataError(
                f"{self.path}: its tokenizer has {vocabulary} ids, the model only "
                f"{vocabulary_size}; use a tokenizer or a model that fits"
            )
        if tokens < length:
            raise DataError(
                f"{self.path}: {tokens} tokens are too few for one sequence, which takes {length}"
            )
        self.sha256 = _compared(self.path, stated) if compare and stated is not None else None
        self._vocabulary_size = vocabulary_size
        self._tokens = np.memmap(self.path, dtype=dtype, mode="r", shape=(tokens,))

    def sequence(self, seed: int, step: int, index: int, length: int) -> np.ndarray[Any, Any]:
        generator = np.random.default_rng((seed, step, index))
        start = int(generator.integers(len(self._tokens) - length + 1))
        ids = self._tokens[start : start + length].astype(np.int64)
        if ids.max() >= self._vocabulary_size:
            raise DataError(
                f"{self.path}: holds the id {ids.max()}, the model has only ids below "
                f"{self._vocabulary_size}; tokenize again"
            )
        return ids


def _compared(tokens: Path, stated: object) -> str:
    """The checksum of a file of tokens. Raises DataError if it is not the stated one.

    This takes about a second a GB, or as long as the file system takes to give them.
    """
    with tokens.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    if sha256 != stated:
        raise DataError(
            f"{tokens}: its SHA-256 is {sha256}, but tokens.json states {shown(stated)}: it is "
            "damaged or another file; make it anew with "
            "`snakemake --profile … --forcerun tokenize --until render tokenize`"
        )
    return sha256


def open_source(cell: Cell, description: Path | None, compare: bool = False) -> Source:
    """Open the source of the cell's tokens; with ``compare``, compare a text's with their checksum.
    Raises DataError, as TokenFile does.
    """
    if cell.data.kind == "synthetic":
        return SyntheticTokens(cell.model.vocabulary_size)
    if description is None:
        raise DataError(
            f"the cell trains on the text {cell.data.name!r}: give its tokens.json with --tokens"
        )
    length = cell.model.sequence_length + 1
    return TokenFile(description, cell.model.vocabulary_size, length, compare)


def step_batches(source: Source, cell: Cell, mesh: Mesh, step: int) -> list[tuple[Tensor, Tensor]]:
    """The micro-batches of this rank's replica in a step: ids and the ids that follow them.

    Each is a pair of [micro-batch size, sequence length] on the mesh's device. A context-parallel
    rank gets only its chunks of the sequences.
    """
    training, length = cell.training, cell.model.sequence_length
    count = training.micro_batches(mesh.degrees.dp) * training.micro_batch_size
    first = mesh.place.dp * count
    rows = [
        source.sequence(training.seed, step, index, length + 1)
        for index in range(first, first + count)
    ]
    ids = torch.from_numpy(np.stack(rows)).to(mesh.device)
    size, chunks = training.micro_batch_size, chunks_of(length, mesh.degrees.cp, mesh.place.cp)
    return [
        (cut(part[:, :-1], chunks, 1).contiguous(), cut(part[:, 1:], chunks, 1).contiguous())
        for part in torch.split(ids, size)
    ]
