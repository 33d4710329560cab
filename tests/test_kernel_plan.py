"""Plans without a GPU: grid sizes, what is loaded, and what a kernel is told."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from cupygemm.config import KernelConfig, KernelSpec, shared_bytes
from cupygemm.errors import ConfigError, LaunchError, ProblemError
from cupygemm.kernels import driver, kernel_plan
from cupygemm.kernels.kernel_plan import MAX_EXTENT, LoadedKernel, Plan
from cupygemm.kernels.operands import Operands
from cupygemm.kernels.raster import Raster
from cupygemm.problem import Problem
from tests.fake_gpu import REGISTERS_AT_LAUNCH, FakeDevice, FakeGpu
from tests.fake_kernel import Launched
from tests.fake_products import LARGE, PROBLEM, SMALL, operands, plain, right


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    gpu = FakeGpu()
    gpu.install(monkeypatch)
    return gpu


def loaded(gpu: FakeGpu, config: KernelConfig = SMALL, problem: Problem = PROBLEM, device: int = 0) -> LoadedKernel:
    return LoadedKernel(gpu.compile(KernelSpec.of(problem), config), device)


# The grid


@pytest.mark.parametrize(
    ("config", "m", "n", "max_sms", "grid"),
    [
        (SMALL, 64, 64, None, 1),
        (SMALL, 65, 64, None, 2),
        (SMALL, 64, 129, None, 3),
        (SMALL, 64 * 11, 64 * 12, None, 132),
        (SMALL, 64 * 12, 64 * 12, None, 132),
        (SMALL, 64 * 12, 64 * 12, 100, 100),
        (SMALL, 64 * 12, 64 * 12, 200, 132),
        (SMALL, 64, 64, 100, 1),
        # Clusters of 2 along M make tiles of 256 x 128, 66 of them fit.
        (LARGE, 1, 1, None, 2),
        (LARGE, 257, 129, None, 8),
        (LARGE, 4096, 4096, None, 132),
        (LARGE, 4096, 4096, 9, 8),
        (LARGE, 4096, 4096, 1, 2),
        # Of 4 by 2, tiles of 512 x 256, 16 of them fit: an uneven number of SMs stays idle.
        (LARGE.swapped(cluster_m=4, cluster_n=2), 4096, 4096, None, 128),
        (LARGE.swapped(cluster_m=4, cluster_n=2), 513, 256, None, 16),
    ],
)
def test_the_grid_is_whole_clusters_and_no_more_than_there_are_tiles(
    gpu: FakeGpu, config: KernelConfig, m: int, n: int, max_sms: int | None, grid: int
) -> None:
    problem = Problem(m, n, 64)
    kernel = loaded(gpu, config.swapped(store_stages=0), problem)
    assert Plan(problem, kernel, max_sms).grid == grid


def test_the_driver_says_how_many_clusters_fit(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    def clusters(*question: int) -> int:
        asked.append(question)
        return 7

    def blocks(*question: int) -> int:
        asked.append(question)
        return 2

    monkeypatch.setattr(driver, "max_active_clusters", clusters)
    monkeypatch.setattr(driver, "max_active_blocks", blocks)
    problem = Problem(4096, 4096, 64)
    paired, single = loaded(gpu, LARGE), loaded(gpu, SMALL)
    assert (paired.active_clusters, single.active_clusters) == (7, 2 * 132)
    assert (Plan(problem, paired).grid, Plan(problem, single).grid) == (14, 264)
    assert asked == [
        (paired.kernel.kernel.ptr, 2, 384, shared_bytes(LARGE, KernelSpec.of(PROBLEM))),
        (single.kernel.kernel.ptr, 256, shared_bytes(SMALL, KernelSpec.of(PROBLEM))),
    ]


@pytest.mark.parametrize("axis", ["m", "n", "k", "batch"])
def test_sizes_end_where_coordinates_do(gpu: FakeGpu, axis: str) -> None:
    largest, larger = (replace(Problem(64, 64, 64), **{axis: MAX_EXTENT + more}) for more in (0, 1))
    kernel = loaded(gpu, SMALL.swapped(store_stages=0), largest)
    assert Plan(largest, kernel).grid >= 1
    with pytest.raises(ProblemError, match="sizes up to"):
        Plan(larger, kernel)


def test_the_last_coordinate_of_the_largest_tile_fits_32_bits() -> None:
    largest = 8 * 256
    assert -(-MAX_EXTENT // largest) * largest <= 2**31 - 1


def test_tiles_are_counted_in_32_bits(gpu: FakeGpu) -> None:
    kernel = loaded(gpu, SMALL.swapped(store_stages=0))
    assert Plan(Problem(64 * 2**15, 64 * (2**16 - 1), 64), kernel).grid == 132
    with pytest.raises(ProblemError, match=f"{2**31} tiles are more than"):
        Plan(Problem(64 * 2**15, 64 * 2**16, 64), kernel)


# What is loaded


def test_a_kernel_is_loaded_with_its_shared_memory_on_its_device(gpu: FakeGpu) -> None:
    kernel = loaded(gpu, LARGE, device=1)
    assert kernel.kernel.device == kernel.index == 1
    assert gpu.current == [0]
    assert kernel.kernel.max_dynamic_shared_size_bytes == kernel.shared_bytes > 48 * 1024


@pytest.mark.parametrize("advisories", [("C7510",), ("C7508", "C7510")])
def test_a_kernel_that_ptxas_changed_is_refused(gpu: FakeGpu, advisories: tuple[str, ...]) -> None:
    compiled = replace(gpu.compile(KernelSpec.of(PROBLEM), SMALL), advisories=advisories)
    with pytest.raises(ConfigError, match=advisories[0]):
        LoadedKernel(compiled)


@pytest.mark.parametrize(
    ("consumers", "producer", "least"),
    # The warpgroups share 40 + 248, 32 + 248 (140 each, in eights), 40 + 2 · 232, 56 + 2 · 224 and 40 + 3 · 152.
    [(1, 40, 144), (1, 32, 144), (2, 40, 168), (2, 56, 168), (3, 40, 128)],
)
def test_too_few_registers_at_launch_are_refused(gpu: FakeGpu, consumers: int, producer: int, least: int) -> None:
    config = SMALL.swapped(consumers=consumers, block_m=64 * consumers, producer_registers=producer)
    compiled = gpu.compile(KernelSpec.of(PROBLEM), config)
    assert compiled.registers == REGISTERS_AT_LAUNCH[consumers] >= least
    for enough in (compiled.registers, least):
        LoadedKernel(replace(compiled, registers=enough))
    with pytest.raises(ConfigError, match=f"{least - 8} registers at launch"):
        LoadedKernel(replace(compiled, registers=least - 8))


def test_what_the_driver_refuses_is_a_launch_error(gpu: FakeGpu) -> None:
    gpu.unloadable.add(SMALL)
    with pytest.raises(LaunchError, match=r"kernel0\.cubin: CUDA_ERROR_INVALID_IMAGE"):
        loaded(gpu, SMALL)
    gpu.active_clusters = 0
    with pytest.raises(LaunchError, match="not one cluster of 2 CTAs"):
        loaded(gpu, LARGE)


# What is launched


def test_arguments_lie_as_in_the_kernel() -> None:
    assert ctypes.sizeof(kernel_plan._Arguments) == 240
    fields = [(name, getattr(kernel_plan._Arguments, name)) for name, _ in kernel_plan._Arguments._fields_]
    assert [(name, field.offset, field.size) for name, field in fields] == [
        ("out", 0, 8),
        ("out_row_stride", 8, 8),
        ("m", 16, 4),
        ("n", 20, 4),
        ("k", 24, 4),
        ("loaded_bytes", 28, 4),
        ("share_stages", 32, 4),
        ("longer_shares", 36, 4),
        ("prefetch", 40, 4),
        ("raster", 44, 48),
        ("policy_a", 96, 8),
        ("policy_b", 104, 8),
        ("policy_out", 112, 8),
        ("a", 120, 8),
        ("b", 128, 8),
        ("a_row_bytes", 136, 8),
        ("b_row_bytes", 144, 8),
        ("matrix_tiles", 152, 12),
        ("a_step", 164, 4),
        ("b_step", 168, 4),
        ("a_batch_bytes", 176, 8),
        ("b_batch_bytes", 184, 8),
        ("out_batch_stride", 192, 8),
        ("bias", 200, 8),
        ("residual", 208, 8),
        ("residual_row_stride", 216, 8),
        ("residual_batch_stride", 224, 8),
        ("alpha", 232, 4),
        ("beta", 236, 4),
    ]


def test_the_kernel_is_told_sizes_order_and_hints(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[kernel_plan._Arguments] = []

    def enqueue(ready: Plan, addresses: tuple[int, ...]) -> None:
        told.append(kernel_plan._Arguments.from_buffer_copy(kernel_plan._Arguments.from_address(addresses[-1])))

    monkeypatch.setattr(Plan, "_enqueue", enqueue)
    problem = Problem(600, 200, 72)
    config = SMALL.swapped(raster_along_n=False, group=2, keep_a=-1, keep_b=0, keep_out=1, prefetch=3)
    ready = Plan(problem, loaded(gpu, config, problem))
    given = Operands(*operands(gpu, problem), gpu.empty((600, 200), np.float16))
    ready.launch(given)
    (got,) = told
    assert (got.out, got.out_row_stride, got.m, got.n, got.k) == (given.out.data.ptr, 200, 600, 200, 72)
    # Evict first, as usual, evict last.
    policies = (got.policy_a, got.policy_b, got.policy_out)
    assert policies == (0x12F0000000000000, 0x1000000000000000, 0x14F0000000000000)
    tiles_m, tiles_n = -(-600 // config.block_m), -(-200 // config.block_n)
    assert tiles_m != tiles_n
    expected = Raster.of(config, tiles_m, tiles_n)
    assert bytes(got.raster) == bytes(expected)
    assert (got.raster.tiles, got.raster.along_n, got.raster.height.divisor) == (tiles_m * tiles_n, 0, min(2, tiles_n))
    assert got.raster.band_tiles.divisor == min(2, tiles_n) * tiles_m
    assert got.loaded_bytes == (config.block_m + config.block_n) * config.block_k * 2
    assert (got.a, got.a_row_bytes, got.b, got.b_row_bytes) == (given.a.data.ptr, 144, given.b.data.ptr, 400)
    assert (got.share_stages, got.longer_shares, got.prefetch) == (2, 0, 3)


@pytest.mark.parametrize(("cluster_k", "slices"), [(1, (9, 0)), (2, (4, 1)), (4, (2, 1)), (8, (1, 1))])
def test_shares_of_k_differ_by_a_stage_at_most(gpu: FakeGpu, cluster_k: int, slices: tuple[int, int]) -> None:
    problem = Problem(64, 64, 513)
    config = SMALL.swapped(block_n=64, block_k=64, cluster_k=cluster_k, store_stages=0)
    ready = Plan(problem, loaded(gpu, config, problem))
    assert (ready._template.share_stages, ready._template.longer_shares) == slices
    assert ready.grid == cluster_k


@pytest.mark.parametrize(
    ("layout", "changes", "rows", "boxes"),
    [
        ("nt", {}, (8, 40), (8, 40)),
        ("nn", {}, (8, 64), (8, 128)),
        ("tt", {}, (64, 40), (128, 40)),
        ("tn", {}, (64, 64), (128, 128)),
        # Slices of a tile that a cluster shares are loaded whole.
        ("nt", {"cluster_n": 2}, (64, 40), (32, 40)),
        ("nt", {"cluster_m": 2}, (8, 64), (8, 32)),
    ],
)
def test_rows_that_no_tile_has_are_not_loaded(
    gpu: FakeGpu, layout: str, changes: dict[str, int], rows: tuple[int, int], boxes: tuple[int, int]
) -> None:
    problem = Problem(8, 40, 72, layout=layout)
    config = SMALL.swapped(block_n=64, block_k=128, **changes)
    ready = Plan(problem, loaded(gpu, config, problem))
    a, b = operands(gpu, problem)
    out = gpu.empty((8, 40), np.float16)
    ready(a, b, out)
    assert tuple(box.rows for _, box in gpu.maps.values())[:2] == boxes
    assert ready._template.loaded_bytes == sum(rows) * 128 * 2
    np.testing.assert_array_equal(plain(out), right(a, b))


@pytest.mark.parametrize("config", [SMALL, LARGE, SMALL.swapped(store_stages=0)])
def test_a_launch_has_the_plans_grid(gpu: FakeGpu, config: KernelConfig) -> None:
    problem = Problem(600, 200, 72)
    kernel = loaded(gpu, config, problem, device=1)
    ready = Plan(problem, kernel, max_sms=10)
    with FakeDevice(gpu, 1):
        a, b = operands(gpu, problem)
        out = gpu.empty((600, 200), np.float16)
        ready(a, b, out)
    assert gpu.launches == [Launched(10, config.threads, kernel.shared_bytes, 1)]
    np.testing.assert_array_equal(plain(out), right(a, b))


def test_a_dependent_launch_is_one_of_the_drivers(gpu: FakeGpu) -> None:
    problem = Problem(600, 200, 72)
    kernel = loaded(gpu, SMALL, problem)
    ready = Plan(problem, kernel, dependent_launch=True)
    a, b = operands(gpu, problem)
    out = gpu.empty((600, 200), np.float16)
    ready(a, b, out)
    Plan(problem, kernel)(a, b, out)
    assert [launched.dependent for launched in gpu.launches] == [True, False]
    assert gpu.launches[0].grid == gpu.launches[1].grid == ready.grid
    np.testing.assert_array_equal(plain(out), right(a, b))
