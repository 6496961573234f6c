"""The data files that ship with the package are found and well-formed."""

from packaging.specifiers import SpecifierSet

from prime_train.registry import gpus
from prime_train.registry.gpus import gpu_peak, gpu_peaks, presets


def test_presets_are_found() -> None:
    assert "quickstart" in presets()
    assert all(path.is_file() for path in presets().values())


def test_every_gpu_has_a_plausible_peak_and_a_source() -> None:
    for gpu in gpu_peaks():
        assert 1e13 < gpu.peak_flops_bf16_dense < 1e16, gpu
        assert gpu.source, gpu
        assert gpu.as_of, gpu


def test_the_longest_matching_name_counts() -> None:
    peak = gpu_peak("NVIDIA GB200")
    assert peak is not None
    assert peak.name == "GB200"


def test_a_name_within_a_longer_word_does_not_count() -> None:
    assert gpu_peak("NVIDIA A100-PCIE-40GB") is None  # no A10
    assert gpu_peak("NVIDIA L40") is None  # no L4
    assert gpu_peak("NVIDIA T400 4GB") is None  # no T4


def test_a_device_of_no_known_name_has_no_peak() -> None:
    assert gpu_peak("AMD EPYC") is None


def test_nvml_names_of_common_cards() -> None:
    for name in (
        "NVIDIA H100 80GB HBM3",
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA GeForce RTX 4090",
        "NVIDIA H200",
        "NVIDIA L40S",
    ):
        assert gpus.gpu_peak(name) is not None, name


def test_gpus_have_names_of_their_own_for_the_command_line() -> None:
    ids = [gpu.id for gpu in gpu_peaks()]
    assert len(set(ids)) == len(ids)
    assert all(gpu.compute_capability is None or float(gpu.compute_capability) >= 7 for gpu in gpu_peaks())


def test_every_clash_of_packages_can_be_read_and_has_a_source() -> None:
    for clash in gpus.clashes():
        assert len(clash.packages) > 1, clash
        assert all(clash.packages.keys()), clash
        assert [SpecifierSet(meant) for meant in clash.packages.values()]
        assert clash.severity in ("error", "warning"), clash
        assert clash.what, clash
        assert clash.why, clash
        assert clash.fix, clash
        assert clash.source, clash
        assert clash.as_of, clash
