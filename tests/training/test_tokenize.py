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


def test_bytes_are_their_own_ids_and_each_document_ends(tmp_path):
    (tmp_path / "b.txt").write_text("é")
    (tmp_path / "a.txt").write_text("Hi\n")

    assert main(["--output", str(tmp_path / "out"), str(tmp_path / "*.txt")]) == 0

    assert ids(tmp_path / "out") == [72, 105, 10, 256, 0xC3, 0xA9, 256]
    description = json.loads((tmp_path / "out" / "tokens.json").read_text())
    assert description["tokens"] == 7
    assert description["vocabulary_size"] == 257
    assert description["end_of_document"] == 256


def test_the_limit_is_exact(tmp_path):
    (tmp_path / "a.txt").write_text("abcdef")

    assert tokenize(tmp_path / "o", [str(tmp_path / "a.txt")], byte_tokenizer(), 3) == 3
    assert ids(tmp_path / "o") == [97, 98, 99]


def test_a_document_larger_than_a_piece_is_the_same_as_whole(tmp_path, monkeypatch):
    text = "première ligne\nsecond line\n" * 50 + "no newline at the end"
    (tmp_path / "a.txt").write_text(text)
    monkeypatch.setattr(module, "PIECE_BYTES", 7)  # cuts through two-byte characters

    tokenize(tmp_path / "o", [str(tmp_path / "a.txt")], byte_tokenizer())

    assert ids(tmp_path / "o") == [*text.encode(), 256]
    assert all(piece.endswith("\n") for piece in list(module.pieces(tmp_path / "a.txt"))[:-1])


def test_tokens_that_are_no_longer_those_that_were_stated_are_refused(tmp_path):
    corpus, made = tmp_path / "a.txt", tmp_path / "o"
    corpus.write_text("abcdef")
    tokenize(made, [str(corpus)], byte_tokenizer())
    stated = (made / "tokens.json").read_bytes()

    # The array may be lost, as from an archive: the same text gives it back.
    (made / "tokens.bin").unlink()
    tokenize(made, [str(corpus)], byte_tokenizer())
    assert ids(made) == [*b"abcdef", 256]
    assert (made / "tokens.json").read_bytes() == stated

    corpus.write_text("abcdeF")
    for lost in (False, True):
        if lost:
            (made / "tokens.bin").unlink()
        with pytest.raises(TokenizeError, match=r"other tokens than .*a\.txt"):
            tokenize(made, [str(corpus)], byte_tokenizer())
        assert (made / "tokens.json").read_bytes() == stated
        assert (made / "tokens.bin").exists() is not lost


def test_another_python_has_another_standard_library_and_the_refusal_says_so(tmp_path, monkeypatch):
    tokenize(tmp_path, [STANDARD_LIBRARY], byte_tokenizer(), 1000)
    description = json.loads((tmp_path / "tokens.json").read_text())
    (tmp_path / "tokens.json").write_text(json.dumps(description | {"sha256": "0" * 64}))
    monkeypatch.setattr(module.platform, "python_version", lambda: "3.99.1")

    with pytest.raises(TokenizeError, match=r"Python 3\.99\.1"):
        tokenize(tmp_path, [STANDARD_LIBRARY], byte_tokenizer(), 1000)


@pytest.mark.parametrize("damaged", ["", "{}", "[1]", "{"])
def test_a_damaged_description_is_written_anew(tmp_path, damaged):
    (tmp_path / "a.txt").write_text("ab")
    (tmp_path / "tokens.json").write_text(damaged)

    assert tokenize(tmp_path, [str(tmp_path / "a.txt")], byte_tokenizer()) == 3
    assert json.loads((tmp_path / "tokens.json").read_text())["tokens"] == 3


@pytest.mark.parametrize("damaged", [None, ""])
def test_without_a_description_the_array_says_which_tokens_runs_trained_on(tmp_path, damaged):
    corpus, made = tmp_path / "a.txt", tmp_path / "o"
    corpus.write_text("abcdef")
    tokenize(made, [str(corpus)], byte_tokenizer())
    stated = (made / "tokens.json").read_bytes()
    (made / "tokens.json").unlink()
    if damaged is not None:
        (made / "tokens.json").write_text(damaged)

    corpus.write_text("abcdeF")
    with pytest.raises(TokenizeError, match=r"tokens\.bin: .*a\.txt"):
        tokenize(made, [str(corpus)], byte_tokenizer())
    assert ids(made) == [*b"abcdef", 256]

    corpus.write_text("abcdef")
    tokenize(made, [str(corpus)], byte_tokenizer())
    assert (made / "tokens.json").read_bytes() == stated


def test_the_standard_library_gives_the_same_tokens_each_time(tmp_path):
    for name in ("one", "two"):
        tokenize(tmp_path / name, [STANDARD_LIBRARY], byte_tokenizer(), 100_000)

    one, two = (json.loads((tmp_path / n / "tokens.json").read_text()) for n in ("one", "two"))
    assert one["tokens"] == 100_000
    assert one["sha256"] == two["sha256"]


@pytest.mark.parametrize(
    ("content", "source", "said"),
    [
        (b"", "a.txt", "the corpus is empty"),
        (b"caf\xe9 \n", "a.txt", "a.txt: not UTF-8"),
        (b"x", "absent.txt", "absent.txt: no such text file"),
        (b"x", ".", r"\*\*/\*.txt"),
    ],
)
def test_a_bad_corpus_is_one_clear_line_and_leaves_nothing(tmp_path, capsys, content, source, said):
    (tmp_path / "a.txt").write_bytes(content)

    assert main(["--output", str(tmp_path / "out"), str(tmp_path / source)]) == 1

    message = capsys.readouterr().err
    assert len(message.splitlines()) == 1
    assert re.search(said, message)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_a_failed_run_leaves_the_tokens_that_were_there(tmp_path):
    (tmp_path / "a.txt").write_text("good")
    (tmp_path / "b.txt").write_bytes(b"\xff")
    out = tmp_path / "out"
    assert main(["--output", str(out), str(tmp_path / "a.txt")]) == 0

    assert main(["--output", str(out), str(tmp_path / "b.txt")]) == 1

    assert ids(out) == [*b"good", 256]
    assert sorted(path.name for path in out.iterdir()) == ["tokens.bin", "tokens.json"]


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
def midway(tmp_path):
    """A tokenizer in the middle of its work, and its arguments."""
    (tmp_path / "a.txt").write_text("a text of some length " * 1000)
    arguments = ["--output", str(tmp_path / "out"), str(tmp_path / "a.txt")]
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

    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "tokens.bin",
        "tokens.json",
    ]
    assert f"{left}, " in capsys.readouterr().err


def test_a_tokenizer_spares_what_another_one_is_writing(midway, tmp_path):
    process, arguments = midway

    assert main(arguments) == 0
    assert len(list((tmp_path / "out").iterdir())) == 3
    made = (tmp_path / "out" / "tokens.bin").read_bytes()

    process.communicate(timeout=60)
    assert process.returncode == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "tokens.bin",
        "tokens.json",
    ]
    assert (tmp_path / "out" / "tokens.bin").read_bytes() == made


def test_a_tokenizer_file_needs_the_package_and_says_so(tmp_path, capsys, monkeypatch):
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)

    code = main(
        ["--output", str(tmp_path / "o"), "--tokenizer", str(tmp_path / "tokenizer.json"), __file__]
    )

    assert code == 1
    assert "tokenizers package" in capsys.readouterr().err


def test_a_tokenizer_file_that_is_absent_is_named(tmp_path, capsys):
    code = main(["--output", str(tmp_path / "o"), "--tokenizer", "absent.json", __file__])

    assert code == 1
    assert "absent.json: no such" in capsys.readouterr().err


def test_a_hugging_face_tokenizer_gives_its_own_ids(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<|endoftext|>": 0, "a": 1, "b": 2, "[UNK]": 3}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("b a\nc\n")
    out = tmp_path / "out"

    arguments = ["--output", str(out), "--tokenizer", str(tmp_path / "tokenizer.json")]
    assert main([*arguments, str(tmp_path / "a.txt")]) == 0

    assert ids(out) == [2, 1, 3, 0]
    assert Path(out / "tokens.json").exists()
