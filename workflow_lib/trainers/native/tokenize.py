"""Turn text into a file of token ids that training maps into memory.

    python -m workflow_lib.trainers.native.tokenize --output DIR SOURCE...

A source is a text file, a glob pattern, or ``python-standard-library``: the sources of the
interpreter's own library, a corpus that every machine has. Documents are read and written piece by
piece, so a corpus may be larger than memory; DIR appears whole or not at all.
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import hashlib
import os
import platform
import sys
import sysconfig
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from workflow_lib.records.files import read_json
from workflow_lib.records.whole_files import report_error, whole_file, write_json
from workflow_lib.words import counted

STANDARD_LIBRARY = "python-standard-library"
PIECE_BYTES = 1 << 20


class TokenizeError(ValueError):
    """The corpus or the tokenizer cannot be used."""


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer: its name, its number of ids, and the function that turns text into ids."""

    name: str
    vocabulary_size: int
    end_of_document: int
    encode: Callable[[str], list[int]]

    @property
    def dtype(self) -> str:
        """The narrower of a token file's two types that holds every id."""
        return "uint16" if self.vocabulary_size <= 1 << 16 else "uint32"


def byte_tokenizer() -> Tokenizer:
    """UTF-8 bytes as ids 0 to 255, and 256 for the end of a document."""
    return Tokenizer("bytes", 257, 256, lambda text: list(text.encode("utf-8")))


def file_tokenizer(path: Path) -> Tokenizer:
    """A Hugging Face ``tokenizer.json``. Raises TokenizeError if it cannot be used."""
    if not path.is_file():
        raise TokenizeError(f"{path}: no such tokenizer file; give a tokenizer.json, or bytes")
    try:
        import tokenizers
    except ImportError:
        raise TokenizeError(
            f"{path}: reading it needs the tokenizers package, which is not installed; install it, "
            "or use --tokenizer bytes"
        ) from None
    try:
        loaded = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise TokenizeError(f"{path}: not a tokenizer.json: {error}") from None
    for name in ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"):
        end = loaded.token_to_id(name)
        if end is not None:
            break
    else:
        raise TokenizeError(
            f"{path}: has no end-of-document token (<|endoftext|>, <|end_of_text|>, </s>, <eos>); "
            "add one to its vocabulary"
        )
    size = loaded.get_vocab_size(with_added_tokens=True)

    def encode(text: str) -> list[int]:
        return list(loaded.encode(text, add_special_tokens=False).ids)

    return Tokenizer(path.name, size, end, encode)


def documents(sources: list[str]) -> list[Path]:
    """The files that the sources name: in the order given, each source's own files sorted.

    Raises TokenizeError for a source that names no file.
    """
    paths: list[Path] = []
    for source in sources:
        if source == STANDARD_LIBRARY:
            library = Path(sysconfig.get_path("stdlib"))
            # Installed packages are not part of the library, and test data is not all UTF-8.
            apart = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
            files = [
                path
                for path in library.rglob("*.py")
                if not apart & set(path.relative_to(library).parts)
            ]
        else:
            files = [Path(source)] if Path(source).is_file() else _matching(source)
        if not files:
            hint = f"{source}/**/*.txt" if Path(source).is_dir() else "an existing file or pattern"
            raise TokenizeError(f"{source}: no such text file; give {hint}, or {STANDARD_LIBRARY}")
        paths += sorted(files)
    return paths


def _matching(pattern: str) -> list[Path]:
    """The files that a glob pattern matches; ``**`` stands for any directories."""
    path = Path(pattern)
    matches = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
    return [match for match in matches if match.is_file()]


def pieces(path: Path) -> Iterator[str]:
    """Read a document as text in pieces of about a megabyte, each ending with a line if possible.

    Raises TokenizeError where the file is not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    rest = ""
    with path.open("rb") as stream:
        while True:
            block = stream.read(PIECE_BYTES)
            try:
                text = rest + decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                raise TokenizeError(
                    f"{path}: not UTF-8 ({error.reason} near byte {stream.tell() - len(block)}); "
                    "convert it, or leave it out"
                ) from None
            if not block:
                if text:
                    yield text
                return
            # A tokenizer must not see a word in two halves.
            cut = text.rfind("\n") + 1 or (len(text) if len(text) > 4 * PIECE_BYTES else 0)
            rest = text[cut:]
            if cut:
                yield text[:cut]


def tokenize(
    output: Path,
    sources: list[str],
    tokenizer: Tokenizer,
    maximum_tokens: int | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> int:
    """Write ``output``/tokens.bin and tokens.json; return the number of tokens.

    Raises TokenizeError if a source cannot be used or is empty, or if other tokens are there or
    stated in a tokens.json: runs may have trained on those.
    """
    files = documents(sources)
    stated = _stated(output)
    digest = hashlib.sha256()
    count, reported_s = 0, time.monotonic()
    # Its lock is held until it is the array.
    with ExitStack() as locks, whole_file(output / "tokens.bin", durable=True) as draft:
        for left in _abandoned(output):
            report(f"{left}, which a tokenizer that was killed left, is removed")
        stream = locks.enter_context(_claimed(draft))
        for number, path in enumerate(files, start=1):
            for ids in _document_ids(path, tokenizer):
                if maximum_tokens is not None:
                    ids = ids[: maximum_tokens - count]
                block = _to_bytes(ids, tokenizer.dtype)
                stream.write(block)
                digest.update(block)
                count += len(ids)
                if time.monotonic() - reported_s > 1:
                    reported_s = time.monotonic()
                    report(f"{number} of {counted(len(files), 'file')}, {counted(count, 'token')}")
            if count == maximum_tokens:
                break
        stream.flush()
        if count == 0:
            raise TokenizeError(f"{sources[0]}: the corpus is empty; give files that hold text")
        if stated is not None and stated[1] != digest.hexdigest():
            raise TokenizeError(_changed(stated[0], sources))
        # The description is removed first and written last, so that it never describes other
        # tokens.
        (output / "tokens.json").unlink(missing_ok=True)
    description = {
        "dtype": tokenizer.dtype,
        "tokens": count,
        "vocabulary_size": tokenizer.vocabulary_size,
        "tokenizer": tokenizer.name,
        "sources": sources,
        "sha256": digest.hexdigest(),
        "end_of_document": tokenizer.end_of_document,
    }
    write_json(output / "tokens.json", description)
    return count


def _claimed(draft: Path) -> BinaryIO:
    """Open an empty draft, and lock it, so that no other tokenizer takes it for abandoned."""
    while True:
        stream = draft.open("ab")
        with suppress(OSError):  # some parallel file systems have no locks
            fcntl.flock(stream, fcntl.LOCK_EX)
        if _is_at(draft, stream):
            stream.truncate(0)
            return stream
        stream.close()  # another one removed it before it was locked


def _abandoned(output: Path) -> Iterator[Path]:
    """Remove the drafts that nobody has locked, and give their paths. A process id would not tell:
    the process may be of another host.
    """
    for draft in output.glob(".tokens.bin.*.tmp"):
        with suppress(OSError), draft.open("r+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(draft, stream):
                draft.unlink()
                yield draft


def _is_at(path: Path, stream: BinaryIO) -> bool:
    """Whether the open file is still the one of that path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(stream.fileno()))
    except FileNotFoundError:
        return False


def _stated(output: Path) -> tuple[Path, str] | None:
    """The checksum of the tokens that runs may have trained on, with the file that says it; None if
    there are none.

    A tokens.json that is missing or damaged says nothing, but its array does.
    """
    description, tokens = output / "tokens.json", output / "tokens.bin"
    with suppress(FileNotFoundError, KeyError, TypeError, ValueError):
        return description, str(read_json(description)["sha256"])
    with suppress(FileNotFoundError), tokens.open("rb") as stream:
        return tokens, hashlib.file_digest(stream, "sha256").hexdigest()
    return None


def _changed(file: Path, sources: list[str]) -> str:
    """What to say of tokens that are no longer those which a file states or holds."""
    library = f"; {STANDARD_LIBRARY} is that of Python {platform.python_version()} here"
    return (
        f"{file}: {'states' if file.suffix == '.json' else 'holds'} other tokens than "
        f"{' '.join(sources)} gives now, and runs may have trained on those"
        f"{library if STANDARD_LIBRARY in sources else ''}. Give the text as it was, or name the "
        f"other text anew in config/data; if no run has trained on it, delete {file.parent}"
    )


def _document_ids(path: Path, tokenizer: Tokenizer) -> Iterator[list[int]]:
    """The ids of a document, piece by piece, and its end; nothing if the document is empty."""
    empty = True
    for text in pieces(path):
        empty = False
        yield tokenizer.encode(text)
    if not empty:
        yield [tokenizer.end_of_document]


def _to_bytes(ids: list[int], dtype: str) -> bytes:
    """Ids in the machine's byte order, as numpy and the token file have them."""
    return array("H" if dtype == "uint16" else "I", ids).tobytes()


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m workflow_lib.trainers.native.tokenize",
        description="Turn text into token ids.",
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE")
    parser.add_argument("--output", type=Path, required=True, help="directory to write")
    parser.add_argument(
        "--tokenizer", default="bytes", help='"bytes" (the default) or a tokenizer.json'
    )
    parser.add_argument("--maximum-tokens", type=int, help="stop after this many")
    options = parser.parse_args(arguments)
    try:
        if options.maximum_tokens is not None and options.maximum_tokens < 1:
            raise TokenizeError("--maximum-tokens must be at least 1")
        chosen = options.tokenizer
        tokenizer = byte_tokenizer() if chosen == "bytes" else file_tokenizer(Path(chosen))
        count = tokenize(
            options.output,
            options.sources,
            tokenizer,
            options.maximum_tokens,
            lambda line: print(line, file=sys.stderr, flush=True),
        )
    except (TokenizeError, OSError) as error:
        return report_error("tokenize", error)
    print(f"{options.output / 'tokens.bin'}: {count} tokens ({tokenizer.name})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
