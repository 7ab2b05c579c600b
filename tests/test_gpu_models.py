"""Names of GPUs: what is which model, and what is known of it."""

import pytest

from workflow_lib import gpu_models


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        (None, "AMD Instinct MI300X"),
        ("H200", "NVIDIA H200"),
        ("NVIDIA H200", "NVIDIA H200"),
        ("H100", "NVIDIA H100 80GB HBM3"),
        ("H100 PCIe", "NVIDIA H100 PCIe"),
        ("H100 NVL", "NVIDIA H100 NVL"),
        ("GH200", "NVIDIA GH200 480GB"),
        ("A100 SXM", "NVIDIA A100-SXM4-80GB"),
        ("MI250", "AMD Instinct MI250X / MI250"),
        ("MI300X", "AMD Instinct MI300X"),
        ("L40S", "NVIDIA L40S"),
    ],
)
def test_a_gpu_of_the_model_is_taken(wanted, name):
    assert gpu_models.mismatch(wanted, name) == ""


@pytest.mark.parametrize(
    ("wanted", "name", "why"),
    [
        ("H200", "NVIDIA GH200 480GB", "'NVIDIA GH200 480GB' is not H200, which its driver calls "
         "'NVIDIA H200'; gpu: GH200 names this one"),
        ("H200", "NVIDIA H200 NVL", "gpu: H200 NVL names this one"),
        ("H100", "NVIDIA H100 PCIe", "gpu: H100 PCIe names this one"),
        ("H100", "NVIDIA H100 NVL", "gpu: H100 NVL names this one"),
        ("H100", "NVIDIA H100 80GB HBM2e", "'NVIDIA H100 80GB HBM3'"),
        ("MI250", "AMD Instinct MI250X", "does not have the words 'MI250'"),
        ("A10", "NVIDIA A100-SXM4-80GB", "'NVIDIA A100-SXM4-80GB' is A100 SXM, not A10"),
        ("L40", "NVIDIA L40S", "does not have the words 'L40'"),
    ],
)  # fmt: skip
def test_another_gpu_is_refused_in_words(wanted, name, why):
    assert why in gpu_models.mismatch(wanted, name)


def test_a_word_that_means_several_models_is_not_chosen_for_the_user():
    assert gpu_models.ambiguous("A100") == ("A100 SXM", "A100 PCIe")
    assert gpu_models.ambiguous("H100") == ()


def test_nothing_is_known_of_a_model_that_is_not_listed():
    assert gpu_models.of_device("NVIDIA L40S") is None
    assert gpu_models.peak_flops_per_s(None, "bf16") is None
    assert gpu_models.named("L40S") is None


def test_peaks_are_those_of_the_datasheets():
    # Dense bf16 of H100 SXM and PCIe: 1 979 and 1 513 TFLOP/s with sparsity.
    sxm, pcie = gpu_models.named("H100"), gpu_models.named("H100 PCIe")
    assert gpu_models.peak_flops_per_s(sxm, "bf16") == pytest.approx(1979e12 / 2, rel=1e-3)
    assert gpu_models.peak_flops_per_s(pcie, "bf16") == pytest.approx(1513e12 / 2, rel=1e-3)
    assert gpu_models.peak_flops_per_s(sxm, "fp8") == pytest.approx(3958e12 / 2, rel=1e-3)
    assert gpu_models.peak_flops_per_s(pcie, "fp8") == pytest.approx(3026e12 / 2, rel=1e-3)
    assert gpu_models.peak_flops_per_s(sxm, "fp4") is None


@pytest.mark.parametrize("key", ["A100 SXM", "A100 PCIe", "MI250"])
def test_a_model_without_units_for_fp8_has_no_peak(key):
    assert gpu_models.peak_flops_per_s(gpu_models.named(key), "fp8") is None
