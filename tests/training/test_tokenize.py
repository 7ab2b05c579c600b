import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from workflow_lib.trainers.native import tokenize as module
from workflow_lib.trainers.native.tokenize import (
    STANDARD_LIBRARY,
    TokenizeError,
    byte_tokenizer,
    main,
    tokenize,
)


def ids(directory):
    return np.fromfile(directory / "tokens.bin", dtype=np.uint16).tolist()


def described(directory):
    return json.loads((directory / "tokens.json").read_text())


def names(directory):
    return sorted(path.name for path in directory.iterdir())


WHOLE = ["tokens.bin", "tokens.json"]


@pytest.fixture
def corpus(tmp_path):
    """A text, which a test may write anew."""
    path = tmp_path / "a.txt"
    path.write_text("abcdef")
    return path


def made_of(corpus, *limit):
    """The directory of a corpus's tokens, made."""
    made = corpus.parent / "out"
    tokenize(made, [str(corpus)], byte_tokenizer(), *limit)
    return made


def test_bytes_are_their_own_ids_and_each_document_ends(corpus, tmp_path):
    (tmp_path / "b.txt").write_text("é")
    corpus.write_text("Hi\n")

    assert main(["--output", str(tmp_path / "out"), str(tmp_path / "*.txt")]) == 0

    assert ids(tmp_path / "out") == [72, 105, 10, 256, 0xC3, 0xA9, 256]
    description = described(tmp_path / "out")
    told = [description[key] for key in ("tokens", "vocabulary_size", "end_of_document")]
    assert told == [7, 257, 256]


def test_the_limit_is_exact(corpus):
    assert ids(made_of(corpus, 3)) == [97, 98, 99]


def test_a_document_larger_than_a_piece_is_the_same_as_whole(corpus, monkeypatch):
    text = "première ligne\nsecond line\n" * 50 + "no newline at the end"
    corpus.write_text(text)
    monkeypatch.setattr(module, "PIECE_BYTES", 7)  # cuts through two-byte characters

    assert ids(made_of(corpus)) == [*text.encode(), 256]
    assert all(piece.endswith("\n") for piece in list(module.pieces(corpus))[:-1])


def test_tokens_that_are_no_longer_those_that_were_stated_are_refused(corpus):
    made = made_of(corpus)
    stated = (made / "tokens.json").read_bytes()

    # The array may be lost, as from an archive: the same text gives it back.
    (made / "tokens.bin").unlink()
    made_of(corpus)
    assert ids(made) == [*b"abcdef", 256]
    assert (made / "tokens.json").read_bytes() == stated

    corpus.write_text("abcdeF")
    for lost in (False, True):
        if lost:
            (made / "tokens.bin").unlink()
        with pytest.raises(TokenizeError, match=r"a\.txt"):
            made_of(corpus)
        assert (made / "tokens.json").read_bytes() == stated
        assert (made / "tokens.bin").exists() is not lost


def test_another_python_has_another_standard_library_and_the_refusal_says_so(tmp_path, monkeypatch):
    tokenize(tmp_path, [STANDARD_LIBRARY], byte_tokenizer(), 1000)
    (tmp_path / "tokens.json").write_text(json.dumps(described(tmp_path) | {"sha256": "0" * 64}))
    monkeypatch.setattr(module.platform, "python_version", lambda: "3.99.1")

    with pytest.raises(TokenizeError, match=r"Python 3\.99\.1"):
        tokenize(tmp_path, [STANDARD_LIBRARY], byte_tokenizer(), 1000)


@pytest.mark.parametrize("damaged", ["", "{}", "[1]", "{"])
def test_a_damaged_description_is_written_anew(corpus, damaged):
    made = corpus.parent / "out"
    made.mkdir()
    (made / "tokens.json").write_text(damaged)

    assert described(made_of(corpus))["tokens"] == 7


@pytest.mark.parametrize("damaged", [None, ""])
def test_without_a_description_the_array_says_which_tokens_runs_trained_on(corpus, damaged):
    made = made_of(corpus)
    stated = (made / "tokens.json").read_bytes()
    (made / "tokens.json").unlink()
    if damaged is not None:
        (made / "tokens.json").write_text(damaged)

    corpus.write_text("abcdeF")
    with pytest.raises(TokenizeError, match=r"tokens\.bin: .*a\.txt"):
        made_of(corpus)
    assert ids(made) == [*b"abcdef", 256]

    corpus.write_text("abcdef")
    assert (made_of(corpus) / "tokens.json").read_bytes() == stated


def test_the_standard_library_gives_the_same_tokens_each_time(tmp_path):
    for name in ("one", "two"):
        tokenize(tmp_path / name, [STANDARD_LIBRARY], byte_tokenizer(), 100_000)

    one, two = (described(tmp_path / name) for name in ("one", "two"))
    assert one["tokens"] == 100_000
    assert one["sha256"] == two["sha256"]


@pytest.mark.parametrize(
    ("content", "source", "said"),
    [
        (b"", "a.txt", "corpus is empty"),
        (b"caf\xe9 \n", "a.txt", "a.txt: not UTF-8"),
        (b"x", "absent.txt", "absent.txt: no such"),
        (b"x", ".", r"\*\*/\*.txt"),
    ],
)
def test_a_bad_corpus_is_one_line(corpus, tmp_path, capsys, content, source, said):
    corpus.write_bytes(content)

    assert main(["--output", str(tmp_path / "out"), str(tmp_path / source)]) == 1

    message = capsys.readouterr().err
    assert len(message.splitlines()) == 1
    assert re.search(said, message)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_a_failed_run_leaves_the_tokens_that_were_there(corpus, tmp_path):
    out = made_of(corpus)
    (tmp_path / "b.txt").write_bytes(b"\xff")

    assert main(["--output", str(out), str(tmp_path / "b.txt")]) == 1

    assert ids(out) == [*b"abcdef", 256]
    assert names(out) == WHOLE


#: a tokenizer that says when it has written a document, and goes on when its input ends
STOPPED_MIDWAY = """
import sys
from workflow_lib.trainers.native import tokenize

pieces = tokenize.pieces

def pieces_and_a_stop(path):
    yield from pieces(path)
    print("midway", flush=True)
    sys.stdin.read()

tokenize.pieces = pieces_and_a_stop
sys.exit(tokenize.main(sys.argv[1:]))
"""


@pytest.fixture
def midway(corpus, tmp_path):
    """A tokenizer in the middle of its work, and its arguments."""
    corpus.write_text("a text of some length " * 1000)
    arguments = ["--output", str(tmp_path / "out"), str(corpus)]
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED_MIDWAY, *arguments],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "midway\n"
        yield process, arguments
        process.kill()


def test_what_a_killed_tokenizer_left_is_removed_by_the_next(midway, tmp_path, capsys):
    process, arguments = midway
    process.kill()
    process.wait()
    (left,) = (tmp_path / "out").iterdir()
    assert left.stat().st_size > 0

    assert main(arguments) == 0

    assert names(tmp_path / "out") == WHOLE
    assert f"{left}, " in capsys.readouterr().err


def test_a_tokenizer_spares_what_another_one_is_writing(midway, tmp_path):
    process, arguments = midway

    assert main(arguments) == 0
    assert len(list((tmp_path / "out").iterdir())) == 3
    made = (tmp_path / "out" / "tokens.bin").read_bytes()

    process.communicate()
    assert process.returncode == 0
    assert names(tmp_path / "out") == WHOLE
    assert (tmp_path / "out" / "tokens.bin").read_bytes() == made


@pytest.mark.parametrize(
    ("name", "said"), [("a.txt", "tokenizers package"), ("absent.json", "absent.json: no such")]
)
def test_a_tokenizer_that_cannot_be_used_is_told(corpus, tmp_path, capsys, monkeypatch, name, said):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    arguments = ["--output", str(tmp_path / "out"), "--tokenizer", str(tmp_path / name)]

    assert main([*arguments, str(corpus)]) == 1
    assert said in capsys.readouterr().err


def test_a_hugging_face_tokenizer_gives_its_own_ids(corpus, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<|endoftext|>": 0, "a": 1, "b": 2, "[UNK]": 3}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    corpus.write_text("b a\nc\n")
    out = tmp_path / "out"

    arguments = ["--output", str(out), "--tokenizer", str(tmp_path / "tokenizer.json")]
    assert main([*arguments, str(corpus)]) == 0

    assert ids(out) == [2, 1, 3, 0]
    assert names(out) == WHOLE
