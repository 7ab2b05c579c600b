"""Times of parts alone: what is read, and the lines that are fitted or refused."""

import json
from dataclasses import replace

import pytest

from tests.projection.made_up_times import EXCHANGE, SIZES, record, records
from workflow_lib.projection import part_times
from workflow_lib.projection.__main__ import main
from workflow_lib.projection.part_times import PartTime, Rates, describe, fit_line, read_parts
from workflow_lib.records.reading import RecordError


def written(path, of):
    path.write_text("".join(json.dumps(each) + "\n" for each in of), encoding="utf-8")
    return path


#: of every size, on the line of EXCHANGE
LATENCY_S, BYTES_PER_S = EXCHANGE


def on_the_line():
    return [at(size, LATENCY_S + size / BYTES_PER_S) for size in SIZES]


def slower(times, number, factor=3):
    """The times, one of them so many times as long."""
    times[number] = replace(times[number], seconds=factor * times[number].seconds)
    return times


def at(size, seconds):
    return PartTime("H200", "all-gather", 2, size, seconds, seconds, seconds, 1)


def test_a_record_is_read_with_its_median_and_its_spread(tmp_path):
    one, other = records()[0], records()[-1]
    found = read_parts(written(tmp_path / "parts.jsonl", [one, other]))

    middle = 20e-6 + 2**20 / 300e9
    assert found[0] == PartTime(
        "H200", "all-reduce", 2, 2**20, middle, 0.9 * middle, 1.5 * middle, repeats=3
    )
    # Clipping and the step of each repeat together.
    assert (found[1].part, found[1].ranks, found[1].repeats) == ("optimiser", 1, 2)
    assert found[1].seconds == pytest.approx(50e-6 + 26 * 2**30 / 3e12)


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ({"gpu": "CPU"}, "CPU"),
        ({"repeats_s": [0.1, 0.0]}, "0.0"),
        ({"repeats_s": []}, "median"),
        ({"received_bytes": "many"}, "'many'"),
        ({"collective": "broadcast"}, "'broadcast'"),
        ({"ranks": None}, "TypeError"),
    ],
)
def test_what_is_no_record_is_refused_with_its_line(tmp_path, change, value):
    path = written(tmp_path / "parts.jsonl", [records()[0], {**records()[0], **change}])
    with pytest.raises(RecordError, match=rf"parts\.jsonl.*line 2: .*{value}"):
        read_parts(path)


def test_only_the_shipped_file_may_be_absent(tmp_path, monkeypatch):
    monkeypatch.setattr(part_times, "SHIPPED", tmp_path / "none.jsonl")
    assert read_parts(tmp_path / "none.jsonl") == ()
    with pytest.raises(FileNotFoundError):
        read_parts(tmp_path / "other.jsonl")


def test_a_line_is_found_with_intervals_that_hold_it():
    line = fit_line(on_the_line())
    assert line.latency_s == pytest.approx(LATENCY_S)
    assert line.bytes_per_s == pytest.approx(BYTES_PER_S)
    assert max(map(abs, line.residuals)) < 1e-9
    assert line.seconds(3 * 2**20, 3) == pytest.approx(3 * (LATENCY_S + 2**20 / BYTES_PER_S))

    # 4 % up and down in turn: both intervals hold the truth, and neither is empty.
    rough = on_the_line()
    for number in range(len(rough)):
        slower(rough, number, 1.04 if number % 2 else 0.96)
    found = fit_line(rough)
    for interval, true in (
        (found.latency_interval_s, LATENCY_S),
        (found.bytes_per_s_interval, BYTES_PER_S),
    ):
        assert interval[0] < true < interval[1]
        assert interval[1] - interval[0] < 0.5 * true
    assert max(map(abs, found.residuals)) == pytest.approx(0.04, rel=0.5)


def test_no_latency_is_below_nothing():
    # The smallest is faster than in proportion.
    line = fit_line([at(1e6, 0.9e-5), at(1e7, 1e-4), at(1e8, 1e-3), at(1e9, 1e-2)])
    assert line.latency_s == 0
    assert line.bytes_per_s == pytest.approx(1e11, rel=0.05)
    assert line.latency_interval_s[0] == 0


@pytest.mark.parametrize(
    ("times", "named"),
    [
        (slower(on_the_line(), 3), r"64 MiB .* 2\.80 times"),
        ([*on_the_line()[:3], on_the_line()[0]], r"\b3 sizes.*\b4\b"),
        ([at(1e6, 4e-3), at(2e6, 3e-3), at(4e6, 2e-3), at(8e6, 1e-3)], "grow"),
    ],
)
def test_a_line_that_times_are_not_on_is_refused(times, named):
    with pytest.raises(RecordError, match=named):
        fit_line(times)


def test_sizes_of_another_protocol_are_left_out_and_smaller_calls_have_no_rate():
    times = slower(on_the_line(), 0)
    line = fit_line(times)
    assert (line.least_bytes, len(line.residuals)) == (SIZES[1], 5)
    assert line.latency_s == pytest.approx(LATENCY_S)
    rates = Rates(tuple(times))
    assert rates.seconds("H200", "all-gather", 2, 2, 2 * SIZES[1]) is not None
    assert rates.seconds("H200", "all-gather", 2, 2, 2 * SIZES[0]) is None


def test_a_refused_line_has_no_rate_and_its_reason(tmp_path):
    bad = [record("all-gather", size, 1e-3 if size == SIZES[2] else size / 3e11) for size in SIZES]
    good = [record("all-gather", size, 1e-5 + size / 3e11, ranks=4) for size in SIZES]
    rates = Rates(read_parts(written(tmp_path / "parts.jsonl", [*bad, *good])))
    assert set(rates.lines) == {("H200", "all-gather", 4)}
    assert rates.seconds("H200", "all-gather", 2, 1, 1e6) is None
    assert rates.seconds("H100", "all-gather", 4, 1, 1e6) is None
    assert rates.seconds("H200", "all-gather", 4, 2, 3e6) == pytest.approx(2e-5 + 1e-5)
    why = rates.refused["H200", "all-gather", 2]
    assert "16 MiB" in why
    said = describe(rates)
    assert f" of 2 on H200: {why}" in said
    assert "10 (10 to 10)" in said


def test_the_command_shows_lines(tmp_path, capsys):
    path = written(tmp_path / "parts.jsonl", records())
    assert main(["parts", str(path)]) == 0
    said = capsys.readouterr().out
    sends = next(line for line in said.splitlines() if "send/recv" in line)
    *cells, error = [cell.strip() for cell in sends.strip("|").split("|")]
    lines = [f"{each} ({each} to {each})" for each in (20, 300, 3000)]
    assert cells == ["send/recv", "H200", "2", "6", "all", *lines[:2]]
    assert error.lstrip("+-") == "0.0%"
    assert lines[2] in said
