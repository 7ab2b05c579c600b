"""What a platform's file says of its partition, against what sinfo says."""

import re

import pytest

from tests.launch import scripts
from workflow_lib import partition

NODE = "gpu{number}|128|2000000|{gres}|h200,rack{number}|{state}|1-00:00:00|1-infinite"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Let sinfo print these lines, and scontrol these host names."""

    def say(lines, hosts=()):
        directory = tmp_path / "bin"
        directory.mkdir(exist_ok=True)
        for name, printed in (("sinfo", lines), ("scontrol", hosts)):
            text = "".join(f"{line}\n" for line in printed)
            (directory / name).write_text(f"#!/bin/sh\ncat <<'EOF'\n{text}EOF\n")
            (directory / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(directory), prepend=":")

    return say


def lines(count=4, gres="gpu:h200:8(S:0-1)", states=()):
    found = [*states, *["idle"] * count][:count]
    return [NODE.format(number=n, gres=gres, state=state) for n, state in enumerate(found, start=1)]


@pytest.fixture
def differences(tmp_path, slurm):
    """What is found, of h200 with some keys changed, where sinfo prints these lines."""

    def find(printed, hosts=(), **changes):
        slurm(printed, hosts)
        platform = scripts.platform(tmp_path, "h200", **changes)
        nodes = partition.nodes_of(platform.partition, platform.exclude_nodes)
        down = partition.unavailable(platform, nodes)
        return [*partition.differences(platform, nodes), *([down] if down else [])]

    return find


def test_a_partition_that_is_as_the_file_says_differs_in_nothing(differences):
    assert differences(lines()) == []
    assert differences(lines(), constraint="[rack1|rack2]") == []
    assert differences(lines(gres="gpu:8"), gpu_type=None) == []


@pytest.mark.parametrize(
    ("printed", "changes", "expected"),
    [
        ([], {}, "partition: Slurm knows no h200;"),
        (lines(), {"time_limit_max_min": 2880}, "jobs of at most 1440 min"),
        ([line.replace("1-infinite", "1-2") for line in lines()], {},
         "nodes: 4, but a job may have at most 2 here"),
        (lines(3), {}, "nodes: 4, but there are 3 that jobs may have"),
        (lines(states=["drained*", "mixed"]), {}, "nodes: 4, but only 3 are up now; down: gpu1"),
        (lines(), {"constraint": "h100"}, "constraint: h100, but the nodes' features are h200, "),
        (lines(), {"constraint": "rack1"}, "nodes: 4, but there are 1 that jobs may have"),
        (lines(gres="gpu:h100:8"), {}, "gpu_type: h200, but the types of the nodes' GPUs are h100"),
        (lines(gres="gpu:h200:4,gpu:a100:4"), {},
         "gpus_per_node: asks for 8 GPUs of a node, which 0 of 4 nodes have; the most is 4"),
        (lines(), {"cpus_per_gpu": 17},
         "cpus_per_gpu: asks for 136 CPUs of a node, which 0 of 4 nodes have; the most is 128"),
        (lines(), {"exclusive": False, "memory_per_node_gb": 2000},
         "memory_per_node_gb: asks for 2048000 MiB of memory of a node"),
    ],
)  # fmt: skip
def test_what_differs_names_the_key(differences, printed, changes, expected):
    (found,) = differences(printed, **changes)
    assert expected in found


@pytest.mark.parametrize(
    ("changes", "idle"),
    [
        ({"gpus_per_node": 6}, "2"),
        ({}, None),
        # Others may have the rest.
        ({"gpus_per_node": 6, "exclusive": False}, None),
    ],
)
def test_gpus_that_would_idle_are_told(tmp_path, slurm, changes, idle):
    slurm(lines())
    platform = scripts.platform(tmp_path, "h200").model_copy(update=changes)
    nodes = partition.nodes_of("h200", ())
    told = partition.unused(platform, nodes)
    assert (told and re.findall(r"\d+", told)[-1]) == idle


def test_excluded_nodes_do_not_count(differences):
    found = differences(lines(), ["gpu1", "gpu2"], exclude_nodes=["gpu[1-2]"])
    (difference,) = found
    assert re.findall(r"nodes: 4|\d+", difference) == ["nodes: 4", "2"]


def test_lines_of_a_sites_wrapper_are_no_nodes(differences):
    banner = "### Friday: 12 nodes | 3 | a | b | c ###"
    printed = [banner, "", *lines(), "Bye.", "a|b|c|d|e|f|g|h"]
    assert differences(printed, [banner, "gpu9"], exclude_nodes=["gpu9"]) == []


def test_what_is_said_of_nodes_in_another_way_is_quoted(differences):
    with pytest.raises(partition.NoAnswerError, match=r"'gpu1\|many\|.*not understood"):
        differences([line.replace("|128|", "|many|") for line in lines()])


@pytest.mark.parametrize(
    ("told", "minutes"),
    [
        ("infinite", None),
        ("2-00:00:00", 2880),
        ("1-06:30:00", 1830),
        ("12:00:00", 720),
        ("30:00", 30),
    ],
)
def test_slurms_time_limits_are_understood(slurm, told, minutes):
    slurm([line.replace("1-00:00:00", told) for line in lines(1)])
    (node,) = partition.nodes_of("h200", ())
    assert node.time_limit_min == minutes


def test_without_slurm_the_message_says_where_to_run(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(partition.NoAnswerError, match="sinfo is not on"):
        partition.nodes_of("h200", ())


def test_where_slurm_does_not_answer_the_message_says_where_to_run(monkeypatch, tmp_path):
    (tmp_path / "sinfo").write_text(
        "#!/bin/sh\necho 'sinfo: fatal: no configuration' >&2\nexit 1\n"
    )
    (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(partition.NoAnswerError, match="no configuration; "):
        partition.nodes_of("h200", ())
