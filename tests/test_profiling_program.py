"""bench/profiling.py: own kernels and those of cuBLAS are told apart, whatever both are called."""

from __future__ import annotations

import click
import pytest

from bench.profiling import METRICS, told_apart


def row(name: str, ns: float) -> dict[str, str]:
    return {"Kernel Name": name, **dict.fromkeys(METRICS, "1"), "gpu__time_duration.sum": str(ns)}


@pytest.mark.parametrize(
    "own", ["_Z11gemm_kernelIXt", "_Z20gemm_cp_async_kernelIXt", "_Z28gemm_cp_async_cluster_kernelIXt"]
)
@pytest.mark.parametrize("theirs", ["nvjet_hsh_128x256_64x4_1x2_h_bz_NNT", "sm90_xmma_gemm_f16f16_f16f32_f32_nn_n"])
def test_kernels_are_told_apart(own: str, theirs: str) -> None:
    rows = [row(name, ns) for ns in (1.0, 2.0, 3.0) for name, ns in ((own, ns), (theirs, 10 * ns))]
    ours, cublas = told_apart(rows)
    assert (ours["kernel"], ours["launches"], ours["duration_ns"]) == (own, 3, 2.0)
    assert (cublas["kernel"], cublas["launches"], cublas["duration_ns"]) == (theirs, 3, 20.0)


def test_a_kernel_that_is_not_there_is_an_error() -> None:
    with pytest.raises(click.ClickException, match="no kernel named like nvjet or gemm or sm90 among 1 profiled"):
        told_apart([row("_Z11gemm_kernelIXt", 1.0)])
    with pytest.raises(click.ClickException, match="no kernel named like gemm_kernel or"):
        told_apart([row("nvjet_hsh", 1.0)])
