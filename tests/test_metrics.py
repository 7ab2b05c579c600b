"""The text for Prometheus follows OpenMetrics' grammar, and holds what the files hold."""

from __future__ import annotations

import re
import sys

import pytest

from tests import programs
from tests.analysis.synthetic_run import Run
from tests.conftest import ROOT
from tests.live.running import CAUSE, CELL, NOW, write
from workflow_lib import metrics
from workflow_lib.live import Watcher

# https://prometheus.io/docs/specs/om/open_metrics_spec/#abnf
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
_SAMPLE = re.compile(
    rf"([a-zA-Z_:][a-zA-Z0-9_:]*)\{{((?:{_LABEL}(?:,{_LABEL})*)?)\}} "
    r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
)
_ABOUT = re.compile(r"# (TYPE|UNIT|HELP) ([a-zA-Z_:][a-zA-Z0-9_:]*) ([^\n]+)")


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Each sample by name and labels, of text that follows the grammar."""
    assert text.endswith("# EOF\n")
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    families: dict[str, dict[str, str]] = {}
    current = ""
    for line in text.removesuffix("# EOF\n").splitlines():
        if about := _ABOUT.fullmatch(line):
            kind, current = about[1], about[2]
            assert kind not in families.setdefault(current, {}), f"{current} is not in one block"
            families[current][kind] = about[3]
            continue
        sample = _SAMPLE.fullmatch(line)
        assert sample, line
        counter = families[current]["TYPE"] == "counter"
        assert sample[1] == current + "_total" * counter
        labels = frozenset(
            (name, re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], value))
            for name, value in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', sample[2])
        )
        assert (sample[1], labels) not in found, line
        found[sample[1], labels] = float(sample[3])
    for name, told in families.items():
        assert told["TYPE"] in ("gauge", "counter"), "node_exporter reads no other kind"
        assert "UNIT" not in told or name.endswith(f"_{told['UNIT']}")
    return found


def text_of(root, now=NOW):
    return metrics.openmetrics(Watcher(root).look(now))


def value(found, name, **labels):
    name = f"triptych_{name}"
    (only,) = (v for (n, have), v in found.items() if n == name and labels.items() <= set(have))
    return only


def test_what_is_read_is_written_in_base_units(tmp_path):
    write(tmp_path)
    found = parsed(text_of(tmp_path))
    gpu = {"cell": CELL, "run": "1", "node": "node1", "gpu": "1"}
    # Of tests/analysis/synthetic_run.py, 50 s after its start.
    assert value(found, "gpu_power_watts", **gpu) == 600
    assert value(found, "gpu_temperature_celsius", **gpu) == 60
    assert value(found, "gpu_sm_clock_hertz", **gpu) == 1.5e9
    assert value(found, "gpu_utilisation_ratio", **gpu) == pytest.approx(0.8)
    assert value(found, "gpu_memory_used_bytes", **gpu) == 2001
    assert value(found, "gpu_energy_joules_total", **gpu) == 600 * 50 + 100_000
    throttled = "gpu_throttled_seconds_total"
    assert value(found, throttled, **gpu, reason="power_cap") == 30
    assert value(found, throttled, **gpu, reason="power_brake") == 0
    assert value(found, "gpu_throttled", **gpu, reason="power_cap") == 1
    assert value(found, "gpu_throttled", **gpu, reason="thermal") == 0
    assert value(found, "gpu_ecc_errors_total", **gpu, kind="corrected") == 6
    assert value(found, "node_power_watts", node="node1") == 2000
    assert value(found, "node_sampled_timestamp_seconds", node="node1") == NOW
    assert value(found, "run_steps_done", run="1") == 3
    assert value(found, "run_steps_asked", run="1") == 3
    assert value(found, "run_tokens_per_second", run="1") == pytest.approx(6.4)


def test_states_are_counted_and_a_failure_has_its_cause_escaped(tmp_path):
    write(tmp_path)
    text = text_of(tmp_path)
    found = parsed(text)
    counts = {
        state: value(found, "runs", state=state)
        for state in ("queued", "running", "failed", "finished")
    }
    assert counts == {"queued": 1, "running": 1, "failed": 1, "finished": 0}
    cause = " ".join(CAUSE.split())
    labels = {"run": "2", "outcome": "communication_timeout", "cause": cause}
    assert value(found, "run_failed", **labels) == 1
    assert r'said [red]C:\\temp[/red] and died"' in text


def test_a_missing_reading_is_absent_and_never_0(tmp_path):
    def edit(fields):
        return {**fields, "power_w": None, "event_reasons": None, "energy_j": None}

    write(tmp_path, Run(edit=edit))
    names = {name.removeprefix("triptych_gpu_") for name, _ in parsed(text_of(tmp_path))}
    assert "temperature_celsius" in names
    assert not names & {"power_watts", "throttled", "energy_joules_total"}


def test_readings_of_a_sampler_that_stopped_are_absent_but_say_when_it_did(tmp_path):
    write(tmp_path)
    found = parsed(text_of(tmp_path, NOW + 3600))
    assert value(found, "node_sampled_timestamp_seconds", node="node1") == NOW
    assert [name for name, _ in found if "_gpu_" in name or "_watts" in name] == []


def test_nothing_at_all_is_counts_of_0(tmp_path):
    assert set(parsed(text_of(tmp_path)).values()) == {0}


def call(*argv):
    command = [sys.executable, "-m", "workflow_lib", "metrics", *map(str, argv)]
    return programs.run(command)


def test_a_site_has_the_file_replaced_whole(tmp_path):
    write(tmp_path / "results")
    output = tmp_path / "textfile" / "triptych.prom"
    printed = call("--results", tmp_path / "results")
    assert call("--results", tmp_path / "results", "--output", output).returncode == 0
    # By now the readings are old; the counts of runs are not.
    assert value(parsed(printed.stdout), "runs", state="failed") == 1
    assert output.read_text() == printed.stdout
    before = output.stat().st_ino
    assert call("--results", tmp_path / "results", "--output", output).returncode == 0
    assert output.stat().st_ino != before
    assert [path.name for path in output.parent.iterdir()] == ["triptych.prom"]


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("--results", "resluts"), "resluts is not a directory"),
        (("--results", ".", "--output", "/proc/triptych.prom"), "/proc/triptych.prom: "),
    ],
)
def test_a_wrong_place_is_one_message(tmp_path, argv, named):
    write(tmp_path)
    argv = [tmp_path / word if word in (".", "resluts") else word for word in argv]
    done = call(*argv)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("triptych: ")
    assert named in line


def test_a_damaged_file_fails_the_command_but_hides_no_other_run(tmp_path):
    paths = write(tmp_path)
    paths.job.write_text("{")
    done = call("--results", tmp_path)
    assert done.returncode == 1
    assert "job.json: " in done.stderr
    assert value(parsed(done.stdout), "runs", state="failed") == 1


def test_the_how_to_lists_every_metric_and_no_other():
    page = (ROOT / "docs" / "how-to" / "watch-a-campaign.md").read_text(encoding="utf-8")
    table = [line for line in page.splitlines() if line.startswith("| `triptych_")]
    listed = {name for line in table for name in re.findall(r"`(triptych_\w+)`", line)}
    ends = {family.name: "_total" * (family.kind == "counter") for family in metrics.FAMILIES}
    assert listed == {name + end for name, end in ends.items()}
