"""KernelConfig's derived sizes and `illegal_reason`, on values worked out by hand."""

from __future__ import annotations

import pytest

from cupygemm.config import KernelConfig, KernelSpec, operand_bytes, shared_bytes, shared_storage_bytes, store_columns
from cupygemm.device import H200, DeviceSpec
from cupygemm.errors import ConfigError
from cupygemm.legality import illegal_reason, violation
from cupygemm.problem import Problem

CONFIG = KernelConfig(
    block_m=128,
    block_n=256,
    block_k=64,
    stages=4,
    consumers=2,
    split_n=False,
    cluster_m=2,
    cluster_n=1,
    raster_along_n=False,
    group=8,
    producer_registers=40,
    wait_depth=1,
    store_stages=1,
)
SPEC = KernelSpec.of(Problem(2048, 2048, 4096))


def test_the_usual_config_is_legal() -> None:
    assert illegal_reason(CONFIG, SPEC, H200) is None


@pytest.mark.parametrize(
    ("consumers", "producer", "expected"),
    # Pools of 504 (three warpgroups of 168), 512 (four of 128) and 496 (two of 248), shared evenly in eights.
    [(2, 24, 240), (2, 40, 232), (2, 56, 224), (3, 32, 160), (1, 40, 248)],
)
def test_consumer_registers(consumers: int, producer: int, expected: int) -> None:
    config = CONFIG.swapped(consumers=consumers, producer_registers=producer)
    assert config.consumer_registers == expected


def test_registers_never_exceed_the_pool() -> None:
    pools = {1: 496, 2: 504, 3: 512}
    for consumers, pool in pools.items():
        for producer in range(24, 129, 8):
            config = CONFIG.swapped(consumers=consumers, producer_registers=producer)
            assert producer + consumers * config.consumer_registers <= pool


def test_operand_bytes_pad_mn_major_tiles_to_whole_slabs() -> None:
    assert operand_bytes(128, 64, "k", "float16") == 16384
    assert operand_bytes(200, 64, "k", "float16") == 200 * 128
    assert operand_bytes(200, 64, "mn", "float16") == 256 * 128


def test_shared_memory_of_the_usual_config() -> None:
    # Four stages of 16 KiB + 32 KiB, two buffers of 64 rows x 128 bytes, barriers rounded up to an atom.
    assert shared_storage_bytes(CONFIG, SPEC) == 4 * 48 * 1024 + 2 * 8192 + 1024
    assert shared_bytes(CONFIG, SPEC) == shared_storage_bytes(CONFIG, SPEC) + 1024


@pytest.mark.parametrize(
    ("block_n", "out_dtype", "expected"),
    [
        (256, "float16", 64),
        (256, "float32", 32),
        (160, "float16", 32),
        (48, "float16", 16),
        (48, "float32", 16),
        (24, "float16", 8),
        (24, "float32", 8),
        (200, "bfloat16", 8),
        (8, "float32", 8),
    ],
)
def test_store_columns(block_n: int, out_dtype: str, expected: int) -> None:
    spec = KernelSpec.of(Problem(64, 64, 64, out_dtype=out_dtype))
    assert store_columns(CONFIG.swapped(block_n=block_n), spec) == expected


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("consumers", {"consumers": 4}),
        ("block_m", {"block_m": 64}),
        ("block_n", {"block_n": 100}),
        ("split_n", {"consumers": 1, "block_m": 64, "split_n": True}),
        ("split_n", {"split_n": True, "block_n": 192}),
        ("ping_pong", {"ping_pong": True, "consumers": 1, "block_m": 64}),
        ("ping_pong", {"ping_pong": True, "split_n": True}),
        ("accumulators", {"ping_pong": True}),
        ("block_k", {"block_k": 32}),
        ("cluster", {"cluster_m": 3}),
        ("cluster", {"cluster_m": 4, "cluster_n": 4}),
        ("cluster", {"cluster_k": 0}),
        ("cluster", {"cluster_k": 9, "cluster_m": 1, "store_stages": 0}),
        ("cluster", {"cluster_m": 4, "cluster_k": 4}),
        ("cluster_k", {"cluster_k": 2, "ping_pong": True, "block_n": 128}),
        ("cluster_k", {"cluster_k": 4, "block_n": 112, "stages": 3}),
        ("cluster_k", {"cluster_k": 3, "block_n": 128, "cluster_m": 1, "stages": 3}),
        ("cluster_k", {"cluster_k": 2, "block_n": 8, "cluster_m": 1, "store_stages": 0}),
        ("producer_registers", {"producer_registers": 36}),
        ("accumulators", {"consumers": 1}),
        ("accumulators", {"consumers": 3, "block_m": 192, "block_n": 208, "stages": 3, "producer_registers": 32}),
        ("stages", {"stages": 1}),
        ("wait_depth", {"wait_depth": 2}),
        ("group", {"group": 0}),
        ("store_stages", {"store_stages": 5}),
        ("l2_promotion", {"l2_promotion": 32}),
        ("keep_a", {"keep_a": 2}),
        ("keep_b", {"keep_b": -2}),
        ("prefetch", {"prefetch": 17}),
        ("prefetch", {"prefetch": -1}),
        ("keep_out", {"keep_out": 2}),
        ("keep_out", {"keep_out": -1, "store_stages": 0}),
        ("shared memory", {"stages": 5}),
    ],
)
def test_each_rule(rule: str, changes: dict[str, int]) -> None:
    found = violation(CONFIG.swapped(**changes), SPEC, H200)
    assert found is not None
    assert found.rule == rule


COPYING = {"cp_async_stages": 2, "cluster_m": 1, "block_n": 128, "wait_depth": 1, "store_stages": 1}


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("cp_async_stages", {"cp_async_stages": -1}),
        ("cp_async_stages", {"cp_async_stages": 5}),
        ("cp_async_stages", {"cluster_m": 2}),
        ("cp_async_stages", {"ping_pong": True, "block_m": 64}),
        ("cp_async_stages", {"consumers": 3, "block_m": 192}),
        ("cp_async_stages", {"wait_depth": 0}),
        ("cp_async_stages", {"store_stages": 2}),
        ("cp_async_stages", {"producer_registers": 24}),
        ("accumulators", {"block_m": 256, "block_n": 144, "stages": 2}),
        ("prefetch", {"prefetch": 1}),
        ("keep_out", {"keep_out": -1}),
    ],
)
def test_each_rule_of_what_copies(rule: str, changes: dict[str, int]) -> None:
    copying = CONFIG.swapped(**COPYING)
    assert violation(copying, SPEC, H200) is None
    found = violation(copying.swapped(**changes), SPEC, H200)
    assert found is not None
    assert found.rule == rule
    # Without copies it is another kernel, to which none of this applies.
    if changes != {"prefetch": 1} and "cp_async_stages" not in changes:
        plain = copying.swapped(**changes, cp_async_stages=0)
        assert (other := violation(plain, SPEC, H200)) is None or other.rule != rule


def test_multicast_slices_are_whole_swizzle_atoms() -> None:
    # A k-major B of 200 rows cannot be cut into two slices of whole groups of 8 rows; 208 rows can.
    spec = KernelSpec.of(Problem(64, 64, 64, layout="nt"))
    assert violation(CONFIG.swapped(block_n=200, stages=3), spec, H200).rule == "multicast"  # type: ignore[union-attr]
    assert illegal_reason(CONFIG.swapped(block_n=208, stages=3), spec, H200) is None


def test_unaligned_rows_are_stored_from_registers_only() -> None:
    spec = KernelSpec.of(Problem(64, 2047, 64))
    assert violation(CONFIG, spec, H200).rule == "store_stages"  # type: ignore[union-attr]
    assert illegal_reason(CONFIG.swapped(store_stages=0), spec, H200) is None


def test_only_hopper() -> None:
    blackwell = DeviceSpec("B200", (10, 0), 148, 232448, 130 << 20, 1965)
    assert "9.0" in (illegal_reason(CONFIG, SPEC, blackwell) or "")


def test_fp8_is_refused_until_it_is_built() -> None:
    spec = KernelSpec.of(Problem(64, 64, 64, a_dtype="float8_e4m3fn", b_dtype="float8_e4m3fn", layout="nt"))
    assert violation(CONFIG, spec, H200).rule == "dtypes"  # type: ignore[union-attr]


def test_round_trip_and_errors_name_the_field() -> None:
    assert KernelConfig.from_dict(CONFIG.to_dict()) == CONFIG
    with pytest.raises(ConfigError, match="group"):
        KernelConfig.from_dict({name: value for name, value in CONFIG.to_dict().items() if name != "group"})
    with pytest.raises(ConfigError, match="tile_q"):
        KernelConfig.from_dict({**CONFIG.to_dict(), "tile_q": 1})
    with pytest.raises(ConfigError, match="split_n"):
        CONFIG.swapped(split_n=1)
    with pytest.raises(ConfigError, match="block_m"):
        CONFIG.swapped(block_m=128.0)
