"""Whether GPUs are fit, by those of the same model."""

from __future__ import annotations

import json
import statistics
import zipfile
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.texts import numbers
from workflow_lib.measure import preflight

ARCHIVE = ROOT / "evidence/measured/preflight-h100x2.zip"


def recorded(name: str) -> dict[str, Any]:
    with zipfile.ZipFile(ARCHIVE) as archive:
        record: dict[str, Any] = json.loads(archive.read(f"{name}.json"))
    return record


def node(name: str, *matrix_tflops: float, heat: float = 0.0) -> dict[str, Any]:
    gpus = [
        {
            **{"node": name, "gpu": number, "uuid": f"GPU-{name}-{number}", "name": "another"},
            "throttle_shares": {"throttle_sw_thermal_s": 0.0, "throttle_hw_thermal_s": heat},
            "values": {"matrix_tflops": value},
        }
        for number, value in enumerate(matrix_tflops)
    ]
    return {"node": name, "simulated": False, "gpus": gpus}


def test_what_is_known_of_a_model_is_the_median_of_what_was_measured():
    gpus = [gpu for name in ("first", "second") for gpu in recorded(name)["gpus"]]
    known = preflight.KNOWN["NVIDIA H100 80GB HBM3"]
    assert known.keys() == preflight.TESTS.keys()
    for name, value in known.items():
        measured = statistics.median(gpu["values"][name] for gpu in gpus)
        assert value == pytest.approx(measured, rel=0.002)


def test_two_real_gpus_are_fit_and_one_with_another_process_is_not():
    for name in ("first", "second"):
        assert preflight.judge([recorded(name)], "vm") == []
    gpus = recorded("disturbed")["gpus"]
    products = [
        {**gpu, "values": {"matrix_tflops": gpu["values"]["matrix_tflops"]}} for gpu in gpus
    ]
    assert [len(list(preflight.problems_of(gpu, products))) for gpu in products] == [0, 2]


def test_a_gpu_is_compared_with_those_of_other_nodes_and_only_its_own_are_named():
    records = [node("a", 700.0, 702.0), node("b", 640.0, 641.0), node("c", 699.0, 701.0)]
    assert preflight.judge(records, "a") == preflight.judge(records, "c") == []
    assert len(preflight.judge(records, "b")) == 2
    # Alone it has no peer and is of a model that we do not know.
    assert preflight.judge([node("b", 640.0)], "b") == []


def test_a_gpu_that_was_compared_with_none_is_not_called_fit():
    read = dict.fromkeys(("power_mean_w", "sm_clock_mean_mhz", "temperature_max_c"))
    records = [node("a", 640.0), node("b", 700.0)]
    for record in records:
        record["gpus"] = [{**gpu, **read} for gpu in record["gpus"]]
    alone, beside = ([*preflight.lines_of(records[0], [], of)][-1] for of in (records[:1], records))
    assert alone.startswith("a: not told of 1 GPU")
    assert beside.startswith("a: fit")


def test_heat_is_a_fault_of_the_node():
    assert len(preflight.judge([node("a", 700.0, 700.0, heat=0.2)], "a")) == 2


@pytest.mark.parametrize("shares", [{}, {"throttle_hw_thermal_s": 0.0}])
def test_heat_without_counters_is_not_called_none(shares):
    read = dict.fromkeys(("power_mean_w", "sm_clock_mean_mhz", "temperature_max_c"))
    record = node("a", 700.0, 700.0)
    record["gpus"] = [{**gpu, **read} for gpu in record["gpus"]]
    record["gpus"][1]["throttle_shares"] = shares
    assert preflight.judge([record], "a") == []
    *_, untold, verdict = preflight.lines_of(record, [], [record])
    assert "heat" in untold
    assert numbers(untold) == [1]
    assert "but for heat" in verdict


def test_the_whole_way_on_a_cpu(tmp_path, capfd):
    words = [str(tmp_path / "fleet"), "--simulate=2", "--seconds=0.5"]
    assert preflight.main(words) in (0, 1)  # a busy CPU is not fit
    (path,) = (tmp_path / "fleet").glob("*.json")
    record = json.loads(path.read_text())
    assert record["simulated"] is True
    assert [gpu["values"].keys() for gpu in record["gpus"]] == [preflight.TESTS.keys()] * 2
    assert all(value > 0 for gpu in record["gpus"] for value in gpu["values"].values())
    assert "SIMULATED" in capfd.readouterr().err


def test_without_gpus_nothing_is_tried(tmp_path):
    with pytest.raises(SystemExit) as ended:
        preflight.main([str(tmp_path / "fleet")])
    assert ended.value.code == 2
    assert not (tmp_path / "fleet").exists()
