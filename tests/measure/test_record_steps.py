"""Steps by records that trainers write: real bytes, framed here by other code than the reader's."""

from __future__ import annotations

import csv
import json
import struct
import sys
from pathlib import Path

import pytest

from tests.measure.runs import ROOT, measure, measured
from workflow_lib import audit
from workflow_lib.measure.record_steps import crc32c, masked, write

T0 = 1_700_000_000.0
#: its number, and when it ended
Step = tuple[int, float]


def checksum(data: bytes) -> bytes:
    """TFRecord's, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15) + (crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF)


def number(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value % 128 + 128]) + number(value // 128)


def text(field: int, content: bytes) -> bytes:
    return number(field * 8 + 2) + number(len(content)) + content


def framed(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + checksum(length) + event + checksum(event)


def event(step: int, at: float, *tags: str) -> bytes:
    values = [text(1, text(1, tag.encode()) + b"\x15" + struct.pack("<f", 0.5)) for tag in tags]
    head = b"\x09" + struct.pack("<d", at) + (b"\x10" + number(step) if step else b"")
    return framed(head + text(5, b"".join(values)))


def events(*steps: Step, tags: tuple[str, ...] = ("loss",)) -> bytes:
    head = framed(b"\x09" + struct.pack("<d", T0 - 1) + text(3, b"brain.Event:2"))
    return head + b"".join(event(step, at, *tags) for step, at in steps)


def titan(*steps: Step) -> bytes:
    lines = [
        {"rank": 0, "step": step, "time_us": int(1e6 * (at + off)), "log_type_name": name}
        for step, at in steps
        for off, name in ((-0.5, "step_start"), (-0.1, "optimizer_end"), (0.0, "step_end"))
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


KINDS = {"tensorboard": events, "torchtitan": titan}
STEPS = ((1, T0 + 1), (2, T0 + 2), (4, T0 + 4), (5, T0 + 5.5))


def read(directory: Path, pattern: str = "run*") -> tuple[str | None, list[dict[str, str]]]:
    told = {"started_unix_s": T0, "ended_unix_s": T0 + 100, "warmup_steps": 2}
    code = write(str(directory / pattern), directory, told)
    with (directory / "records.csv").open(encoding="utf-8", newline="") as stream:
        return code, list(csv.DictReader(stream))


def ends(rows: list[dict[str, str]]) -> list[tuple[int, int, float]]:
    """Last step, number of steps, and seconds of each row."""
    spans = [(float(row["started_unix_s"]), float(row["ended_unix_s"])) for row in rows]
    numbers = [(int(row["step"]), int(row["steps"])) for row in rows]
    return [(*pair, end - start) for pair, (start, end) in zip(numbers, spans, strict=True)]


def test_the_checksum_is_castagnolis():
    # RFC 3720, B.4
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert struct.pack("<I", masked(bytes(32))) == checksum(bytes(32))


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_ends_the_steps_since_the_one_before(tmp_path, kind):
    (tmp_path / "run.x").write_bytes(KINDS[kind](*STEPS))
    code, rows = read(tmp_path)
    assert code is None
    assert ends(rows) == [(2, 1, 1.0), (4, 2, 2.0), (5, 1, 1.5)]
    assert [row["phase"] for row in rows] == ["warmup", "measured", "measured"]
    assert {row["pattern"] for row in rows} == {kind}


@pytest.mark.parametrize("kind", KINDS)
def test_the_warm_up_of_a_program_that_goes_on_does_not_count(tmp_path, kind):
    later = [(1000 + step, at) for step, at in STEPS]
    (tmp_path / "run.x").write_bytes(KINDS[kind](*later))
    assert [row["phase"] for row in read(tmp_path)[1]] == ["warmup", "measured", "measured"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_earlier_run_wrote_does_not_count(tmp_path, kind):
    earlier = [(step, T0 - 50 + step) for step in range(1, 20)]
    (tmp_path / "run.1").write_bytes(KINDS[kind](*earlier))
    assert read(tmp_path) == ("records_not_of_this_run", [])
    (tmp_path / "run.0").write_bytes(b"nothing that is known")
    assert read(tmp_path)[0] == "records_not_of_this_run"
    (tmp_path / "run.2").write_bytes(KINDS[kind](*earlier, *STEPS[1:], (6, T0 + 101)))
    assert ends(read(tmp_path)[1]) == [(4, 2, 2.0), (5, 1, 1.5)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_cut_anywhere_gives_what_is_whole(tmp_path, kind):
    content = KINDS[kind](*STEPS)
    whole = len(KINDS[kind](*STEPS[:3]))
    for length in range(whole, len(content)):
        (tmp_path / "run.x").write_bytes(content[:length])
        code, rows = read(tmp_path)
        assert code in (None, "record_cut_off")
        assert ends(rows)[:2] == [(2, 1, 1.0), (4, 2, 2.0)]
        # A line is whole without its end, too.
        ends_here = content[length - 1 : length + 1]
        is_line = kind == "torchtitan" and b"\n" in ends_here
        assert (code is None) is (length == whole or is_line)


@pytest.mark.parametrize("kind", KINDS)
def test_any_wrong_byte_is_a_reason_and_no_error(tmp_path, kind):
    begin = len(KINDS[kind](*STEPS[:2]))
    content = KINDS[kind](*STEPS)
    codes = set()
    for at in range(begin, len(content)):
        (tmp_path / "run.x").write_bytes(content[:at] + b"\xff" + content[at + 1 :])
        code, rows = read(tmp_path)
        codes.add(code)
        assert ends(rows)[:1] == [(2, 1, 1.0)]
    cut_off = {"record_cut_off"} if kind == "torchtitan" else set()
    assert codes == {"record_damaged"} | cut_off


@pytest.mark.parametrize(
    "event", [b"\x80", b"\x0a\xff", b"\x0b", b"\x08\x01", text(5, b"\x0a\x03ab")]
)
def test_a_message_that_is_no_event_is_damaged(tmp_path, event):
    rest = text(5, text(1, text(1, b"loss"))) if event == b"\x08\x01" else b""
    (tmp_path / "run.x").write_bytes(events(*STEPS[:2]) + framed(event + rest))
    code, rows = read(tmp_path)
    assert (code, len(rows)) == ("record_damaged", 1)


def test_of_several_series_and_ranks_one_counts(tmp_path):
    samples = [(step * 64, at + 0.1) for step, at in STEPS]
    content = events(*STEPS, tags=("loss", "lr")) + events(
        *samples, tags=("loss vs samples", "vs x")
    )
    (tmp_path / "run.1").write_bytes(content + event(5, T0 + 9, "eval/loss"))
    (tmp_path / "run.0").write_bytes(events(*STEPS[2:]))
    assert ends(read(tmp_path)[1]) == [(2, 1, 1.0), (4, 2, 2.0), (5, 1, 1.5)]
    (tmp_path / "run.1").write_bytes(events(*samples, tags=("Train/Samples/lr",)))
    assert ends(read(tmp_path)[1]) == [(5, 1, 1.5)]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "records_not_found"),
        (b"", "records_not_known"),
        (b'{\n "log_history": [{"loss": 1.0, "step": 1}]\n}\n', "records_not_known"),
        (b'{"step": 1, "loss": 2.0}\n', "records_not_known"),
        (b"[" * 100_000, "records_not_known"),
        (events(), "records_not_of_this_run"),
    ],
)  # fmt: skip
def test_without_steps_there_is_a_code(tmp_path, content, code):
    (tmp_path / "runs").mkdir()
    if content is not None:
        (tmp_path / "run.x").write_bytes(content)
    assert read(tmp_path) == (code, [])


#: writes an event a step, as this file frames them
PROGRAM = """
import sys, time
from tests.measure.test_record_steps import event, events
with open("events.out.7", "wb") as stream:
    stream.write(events())
    for step in range(0, 60, 10):
        stream.write(event(step, time.time(), "loss"))
        time.sleep(0.3)
    stream.write(event(60, time.time(), "loss")[: int(sys.argv[1])])
"""


def test_the_whole_way(tmp_path):
    words = (sys.executable, "-c", PROGRAM)
    options = ("--records=events.*", "--tokens-per-step=100")
    assert measure(tmp_path, *words, "9", options=options, PYTHONPATH=str(ROOT)).returncode == 0
    record = measured(tmp_path)
    assert (record["rung"], record["steps"]) == (2, ["steps/records.csv"])
    assert record["records_end"] == "record_cut_off"
    # The first ten steps began before the warm-up was over.
    assert record["values"]["counted_steps"] == 40
    assert record["values"]["step_time_s"] == pytest.approx(0.03, abs=0.02)
    per_token_j = record["values"]["energy_j"] / 4000
    assert record["values"]["energy_per_token_j"] == pytest.approx(per_token_j)
    assert audit.main([str(tmp_path / "run")]) == 0


def test_records_that_are_not_there_are_the_reason(tmp_path):
    options = ("--records=nothing*", "--tokens-per-step=100")
    assert measure(tmp_path, "sh", "-c", "exit 3", options=options).returncode == 3
    record = measured(tmp_path)
    assert (record["rung"], record["records_end"]) == (0, "records_not_found")
    for name in ("step_time_s", "tokens_per_s"):
        assert record["missing"][name] == "records_not_found"
