"""What makes a config illegal for a spec on a device, rule by rule, with the reason in words.

`cuda_src/config.cuh` repeats, as static_asserts, what depends neither on the device nor on what is told at launch;
tests/nvrtc holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from cupygemm.config import (
    CP_ASYNC_PRODUCER_REGISTERS,
    L2_PROMOTIONS,
    MAX_CLUSTER,
    MAX_STAGES,
    MAX_TILE,
    MIN_PRODUCER_REGISTERS,
    MMA_M,
    SWIZZLE_BYTES,
    KernelConfig,
    KernelSpec,
    shared_bytes,
)
from cupygemm.device import DeviceSpec
from cupygemm.dtypes import DTYPES, OPERAND_DTYPES, RESULT_DTYPES
from cupygemm.epilogue import Epilogue


class Violation(NamedTuple):
    """A rule that a config breaks: its short name, and the reason in words."""

    rule: str
    reason: str


def illegal_reason(config: KernelConfig, spec: KernelSpec, device: DeviceSpec) -> str | None:
    """Why this config cannot run this spec on this device, or None when it can."""
    found = violation(config, spec, device)
    return None if found is None else found.reason


def violation(config: KernelConfig, spec: KernelSpec, device: DeviceSpec) -> Violation | None:
    """The first rule broken, cheapest rules first; `illegal_reason` with the rule's name."""
    return _first(RULES, config, spec, device)


def compiled_violation(config: KernelConfig, spec: KernelSpec, device: DeviceSpec) -> Violation | None:
    """The first rule broken by what is compiled of the config: it is broken whatever is told at launch."""
    return _first(COMPILED_RULES, config, spec, device)


def _first(rules: tuple[Rule, ...], config: KernelConfig, spec: KernelSpec, device: DeviceSpec) -> Violation | None:
    return next((found for rule in rules for found in rule(config, spec, device)), None)


def _device_violations(config: KernelConfig, spec: KernelSpec, device: DeviceSpec) -> Iterator[Violation]:
    if not device.is_hopper:
        cc = ".".join(map(str, device.compute_capability))
        yield Violation(
            "device", f"{device.name} has compute capability {cc}: WGMMA and TMA multicast need 9.0 (sm_90a)"
        )


def _spec_violations(config: KernelConfig, spec: KernelSpec, device: DeviceSpec) -> Iterator[Violation]:
    if spec.a_dtype != spec.b_dtype or spec.a_dtype not in OPERAND_DTYPES:
        legal = " or both ".join(OPERAND_DTYPES)
        yield Violation("dtypes", f"operands are {spec.a_dtype} and {spec.b_dtype}: both must be {legal}")
    if spec.out_dtype not in RESULT_DTYPES:
        yield Violation("dtypes", f"the result is {spec.out_dtype}: it must be {' or '.join(RESULT_DTYPES)}")


def _tile_violations(config: KernelConfig, spec: KernelSpec, device: DeviceSpec) -> Iterator[Violation]:
    c = config
    if not 1 <= c.consumers <= 3:
        yield Violation("consumers", f"{c.consumers} consumer warpgroups: 1, 2 or 3 leave each enough registers")
        return
    if c.ping_pong and (c.split_n or c.consumers == 1):
        yield Violation(
            "ping_pong", "ping_pong needs two consumers or more, and each computes whole tiles (no split_n)"
        )
        return
    rows = MMA_M * (1 if c.split_n or c.ping_pong else c.consumers)
    if c.block_m <= 0 or c.block_m % rows or c.block_m > MAX_TILE:
        yield Violation(
            "block_m", f"block_m {c.block_m}: a multiple of {rows} (64 rows a WGMMA and consumer), at most {MAX_TILE}"
        )
    columns = 8 * (c.consumers if c.split_n else 1)
    if c.block_n <= 0 or c.block_n % columns or c.block_n > MAX_TILE:
        yield Violation(
            "block_n", f"block_n {c.block_n}: a multiple of {columns} (WGMMA's n is in eights), at most {MAX_TILE}"
        )
    if c.split_n and c.consumers == 1:
        yield Violation("split_n", "split_n with one consumer: there is nothing to divide")
    slab = SWIZZLE_BYTES // DTYPES[spec.b_dtype].bytes
    if c.split_n and spec.seen_by(c).b_major == "mn" and c.consumer_n % slab:
        yield Violation("split_n", f"{c.consumer_n} columns a consumer: an mn-major B is divided at slabs of {slab}")
    depth = SWIZZLE_BYTES // DTYPES[spec.a_dtype].bytes
    if c.block_k <= 0 or c.block_k % depth or c.block_k > MAX_TILE:
        yield Violation(
            "block_k", f"block_k {c.block_k}: a multiple of {depth} (one 128-byte swizzle span), at most {MAX_TILE}"
        )


def _cluster_violations(config: KernelConfig, spec: KernelSpec, device: DeviceSpec) -> Iterator[Violation]:
    c = config
    shape = f"{c.cluster_m}x{c.cluster_n}x{c.cluster_k}"
    if c.cluster_m not in (1, 2, 4, 8) or c.cluster_n not in (1, 2, 4, 8):
        yield Violation("cluster", f"cluster {shape}: cluster_m and cluster_n are powers of two, at most 8")
        return
    if c.cluster_k < 1 or c.cluster_size > MAX_CLUSTER:
        yield Violation("cluster", f"cluster {shape}: at least 1 CTA, and at most {MAX_CLUSTER} (portable size)")
        return
    if c.cluster_k > 1 and c.ping_pong:
        yield Violation("cluster_k", "cluster_k with ping_pong is not built: consumers would skip stages of all K")
    if c.cluster_k > 1 and c.consumer_n == 8:
        yield Violation("cluster_k", "cluster_k with 8 columns a consumer: there is but one part of 8 to share out")
    if c.store_stages and c.consumer_n % (8 * c.cluster_k):
        yield Violation(
            "cluster_k",
            f"{c.consumer_n} columns of a consumer in {c.cluster_k} parts: to be stored by TMA, they are equal and "
            "multiples of 8 (store_stages 0 stores any)",
        )
    spec = spec.seen_by(c)
    for name, rows, major, peers in (
        ("A", c.block_m, spec.a_major, c.cluster_n),
        ("B", c.block_n, spec.b_major, c.cluster_m),
    ):
        slab = SWIZZLE_BYTES // DTYPES[spec.a_dtype].bytes
        slabs = -(-rows // slab)
        sliced = rows if major == "k" else c.block_k
        whole_slabs = major == "mn" and slabs % peers == 0
        if not whole_slabs and sliced % (8 * peers):
            yield Violation(
                "multicast",
                f"{name}: {sliced} rows in {peers} slices: a slice is a multiple of 8 rows (a swizzle atom)",
            )


def _register_violations(config: KernelConfig, spec: KernelSpec, device: DeviceSpec) -> Iterator[Violation]:
    c = config
    if c.producer_registers % 8 or not MIN_PRODUCER_REGISTERS <= c.producer_registers <= 128:
        yield Violation(
            "producer_registers",
            f"producer_registers {c.producer_registers}: a multiple of 8 from 24 to 128 (setmaxnreg)",
        )
        return
    # 16 registers beside the accumulators is less than any main loop needs: above it spills are certain and ptxas
    # may give up altogether (C7602); below it they are measured.
    if c.consumers == 3 and c.consumer_n > 200:
        yield Violation(
            "accumulators", f"{c.consumer_n} columns a consumer: in 160 registers ptxas takes 200 at most (C7602)"
        )
    if c.accumulators > c.consumer_registers - 16:
        yield Violation(
            "accumulators", f"{c.accumulators} accumulators a thread do not fit {c.consumer_registers} registers"
        )


def _pipeline_violations(config: KernelConfig, spec: KernelSpec, device: DeviceSpec) -> Iterator[Violation]:
    c = config
    if not 2 <= c.stages <= MAX_STAGES:
        yield Violation("stages", f"{c.stages} stages: from 2 to {MAX_STAGES}")
    if c.wait_depth not in (0, 1):
        yield Violation("wait_depth", f"wait_depth {c.wait_depth}: 0, or 1 to leave one WGMMA group in flight")


def _store_violations(config: KernelConfig, spec: KernelSpec, device: DeviceSpec) -> Iterator[Violation]:
    c = config
    if not 0 <= c.store_stages <= 4:
        yield Violation("store_stages", f"store_stages {c.store_stages}: from 0 (store from registers) to 4")
    elif c.store_stages and not spec.out_aligned:
        yield Violation(
            "store_stages",
            "the result's rows are no multiple of 16 bytes: TMA cannot store them, only store_stages 0 can",
        )


def launch_violations(config: KernelConfig, spec: KernelSpec, device: DeviceSpec) -> Iterator[Violation]:
    """The rules broken by what is told at launch."""
    c = config
    if not 1 <= c.group <= 64:
        yield Violation("group", f"group {c.group}: from 1 to 64 tiles")
    if c.l2_promotion not in L2_PROMOTIONS:
        yield Violation("l2_promotion", f"l2_promotion {c.l2_promotion}: one of {L2_PROMOTIONS} bytes")
    for name in ("keep_a", "keep_b", "keep_out"):
        if getattr(c, name) not in (-1, 0, 1):
            yield Violation(name, f"{name} {getattr(c, name)}: -1 (evict first), 0 or 1 (evict last)")
    if not 0 <= c.prefetch <= MAX_STAGES:
        yield Violation("prefetch", f"prefetch {c.prefetch}: from 0 to {MAX_STAGES} stages")
    if c.keep_out and (c.cp_async_stages or not c.store_stages):
        yield Violation("keep_out", "keep_out with store_stages 0 or cp_async_stages: only TMA's stores carry L2 hints")
    if c.prefetch and c.cp_async_stages:
        yield Violation("prefetch", f"prefetch {c.prefetch} with cp_async_stages: the first stages are copied at once")


def _cp_async_violations(config: KernelConfig, spec: KernelSpec, device: DeviceSpec) -> Iterator[Violation]:
    c = config
    if not 0 <= c.cp_async_stages <= c.stages:
        yield Violation("cp_async_stages", f"cp_async_stages {c.cp_async_stages}: from 0 to the {c.stages} stages")
    if c.cp_async_stages <= 0:
        return
    if c.cluster_m * c.cluster_n > 1:
        yield Violation("cp_async_stages", "cp_async_stages with multicast: threads copy for their own CTA alone")
    if c.ping_pong or c.consumers > 2:
        yield Violation("cp_async_stages", "cp_async_stages: one consumer, or two that divide a tile (no ping_pong)")
    if c.consumers == 2 and c.accumulators > c.registers - 32:
        yield Violation(
            "accumulators",
            f"{c.accumulators} accumulators a thread with cp_async_stages: {c.registers - 32} at most in {c.registers} "
            "registers (C7511)",
        )
    if c.wait_depth != 1:
        yield Violation("cp_async_stages", f"wait_depth {c.wait_depth} with cp_async_stages: 1 alone is built")
    if c.store_stages > 1:
        yield Violation(
            "cp_async_stages", f"store_stages {c.store_stages} with cp_async_stages: 0, or 1 buffer that warps share"
        )
    if c.producer_registers != CP_ASYNC_PRODUCER_REGISTERS:
        yield Violation(
            "cp_async_stages",
            f"producer_registers {c.producer_registers} with cp_async_stages, which have no setmaxnreg: say "
            f"{CP_ASYNC_PRODUCER_REGISTERS}",
        )


def unswappable_reason(spec: KernelSpec) -> str | None:
    """Why no config with `swap_ab` is legal for a spec, or None."""
    if not spec.out_aligned:
        return "swap_ab with rows of the result that are no multiple of 16 bytes: it stores whole pieces of those"
    if spec.out_dtype not in OPERAND_DTYPES:
        return f"swap_ab with a result in {spec.out_dtype}: stmatrix transposes 16 bits"
    epilogue = Epilogue.parse(spec.epilogue)
    if epilogue.residual or epilogue.bias == ("n" if spec.out_transposed else "m"):
        return f"swap_ab with epilogue {spec.epilogue}: a residual or a bias a row would not be read in pairs"
    return None


def _swap_violations(config: KernelConfig, spec: KernelSpec, device: DeviceSpec) -> Iterator[Violation]:
    if not config.swap_ab:
        return
    if not config.store_stages:
        yield Violation("swap_ab", "swap_ab with store_stages 0: the result is transposed in shared memory")
    reason = unswappable_reason(spec)
    if reason is not None:
        yield Violation("swap_ab", reason)


def _shared_violations(config: KernelConfig, spec: KernelSpec, device: DeviceSpec) -> Iterator[Violation]:
    needed = shared_bytes(config, spec)
    if needed > device.shared_bytes:
        yield Violation(
            "shared memory", f"{needed} bytes of shared memory: {device.name} has {device.shared_bytes} for a block"
        )


Rule = Callable[[KernelConfig, KernelSpec, DeviceSpec], Iterator[Violation]]
COMPILED_RULES: tuple[Rule, ...] = (
    _device_violations,
    _spec_violations,
    _tile_violations,
    _cluster_violations,
    _register_violations,
    _pipeline_violations,
    _store_violations,
    _cp_async_violations,
    _swap_violations,
    _shared_violations,
)
"""What makes a config illegal whatever is told at launch, cheapest first."""
RULES: tuple[Rule, ...] = (*COMPILED_RULES, launch_violations)
"""What makes a config illegal; each can be asked alone."""
