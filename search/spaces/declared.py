"""The sub-spaces that are recorded whole: `SUBSPACES`, their knobs, and `RESTRICTIONS`, what they leave out."""

from __future__ import annotations

from cupygemm.config import KernelConfig, KernelSpec, shared_bytes, stage_bytes
from cupygemm.device import H200
from cupygemm.names import CORE, LARGE, SMALL
from cupygemm.search.spaces.space import Knob, completed
from cupygemm.search.spaces.subspace import Restriction, SubSpace


def _wastes_consumers(config: KernelConfig, spec: KernelSpec) -> bool:
    return config.consumers != (1 if config.block_m == 64 and not config.ping_pong else 2)


def _is_shallow(config: KernelConfig, spec: KernelSpec) -> bool:
    return config.stages * stage_bytes(config, spec) < 96 * 1024


def _is_shallow_beside_copies(config: KernelConfig, spec: KernelSpec) -> bool:
    return config.stages * stage_bytes(config, spec) < (64 if config.cp_async_stages else 96) * 1024


def _is_doubly_clustered(config: KernelConfig, spec: KernelSpec) -> bool:
    return config.cluster_size > 2


def _registers_idle(config: KernelConfig, spec: KernelSpec) -> bool:
    usual = config.swapped(producer_registers=USUAL["producer_registers"])
    same = usual.consumer_registers == config.consumer_registers
    return same and config.producer_registers != usual.producer_registers


def _departs_twice(config: KernelConfig, spec: KernelSpec) -> bool:
    departures = [name for name, value in USUAL.items() if getattr(config, name) != value]
    return len(departures) > 1


def _is_mirrored_in_part(config: KernelConfig, spec: KernelSpec) -> bool:
    return config.raster_along_n == config.swap_ab


# Of `small`.


def _does_not_pay(config: KernelConfig, spec: KernelSpec) -> bool:
    shared = config.cluster_m * config.cluster_n
    return shared > 2 or (config.cluster_k > 1 and (config.cluster_m > 1 or (shared > 1 and config.cluster_k > 3)))


def _is_narrow(config: KernelConfig, spec: KernelSpec) -> bool:
    if config.block_m > 64:
        return config.block_n < 64
    return config.block_n < 32 and config.cluster_k == 1


def _way_out_is_odd(config: KernelConfig, spec: KernelSpec) -> bool:
    tile, square = config.block_m * config.block_n, 128 * 128
    if config.ping_pong:
        return config.block_n < (32 if config.swap_ab else 64) or config.store_stages != 2
    if config.swap_ab:
        return config.store_stages != 1
    if config.cluster_k > 1:
        return config.block_m > 128 or config.block_n > 128 or config.store_stages > 1
    return tile < square if config.store_stages > 1 else config.store_stages == 0 and tile > square // 2


def _is_between(config: KernelConfig, spec: KernelSpec) -> bool:
    return config.stages in (7, 9) and not _is_deepest(config, spec, SMALL_STAGES)


def _swap_does_not_pay(config: KernelConfig, spec: KernelSpec) -> bool:
    if not config.swap_ab:
        return False
    shared = config.cluster_m * config.cluster_n
    return config.block_m > 64 or config.block_n not in (32, 64) or shared > 1 or config.cp_async_stages == 2


def _departs_at_launch(config: KernelConfig, spec: KernelSpec) -> bool:
    departures = _departures_at_launch(config)
    if not departures:
        return False
    if not _is_deepest(config, spec, SMALL_STAGES):
        return True
    if "prefetch" in departures:
        streamed = {"keep_a" if config.swap_ab else "keep_b"}
        return departures != {"prefetch"} | ({"keep_a", "keep_b"} if config.prefetch == 2 else streamed)
    return departures not in ({"group"}, {"keep_a"}, {"keep_b"}, {"keep_a", "keep_b"}, {"group", "keep_a", "keep_b"})


# Of `large`.


def _is_tiny(config: KernelConfig, spec: KernelSpec) -> bool:
    return config.block_m * config.block_n < 128 * 64


def _way_out_is_odd_of_large(config: KernelConfig, spec: KernelSpec) -> bool:
    tile, square = config.block_m * config.block_n, 128 * 128
    if config.ping_pong:
        return config.store_stages not in (1, 2)
    if config.cluster_k > 1:
        return config.store_stages > 1 or tile > square
    return config.store_stages not in ((1, 2) if tile < square else (2, 4))


def _waits_by_turns(config: KernelConfig, spec: KernelSpec) -> bool:
    return config.wait_depth == 0 and config.ping_pong


def _swap_of_large_does_not_pay(config: KernelConfig, spec: KernelSpec) -> bool:
    return config.swap_ab and (not config.ping_pong or config.block_m * config.block_n < 128 * 128)


def _departs_at_launch_of_large(config: KernelConfig, spec: KernelSpec) -> bool:
    departures = _departures_at_launch(config)
    if not departures:
        return False
    if not _is_deepest(config, spec, LARGE_STAGES):
        return True
    if departures & {"keep_a", "keep_b", "prefetch"}:
        streams = departures == {"keep_a", "keep_b", "prefetch"}
        return not streams or config.block_m > 64 or not config.ping_pong or config.swap_ab
    return False


def _departures_at_launch(config: KernelConfig) -> set[str]:
    return {name for name, value in USUAL_AT_LAUNCH.items() if getattr(config, name) != value}


def _is_deepest(config: KernelConfig, spec: KernelSpec, stages: tuple[int, ...]) -> bool:
    """Whether the next larger number of stages would not fit: all Hopper GPUs have as much shared memory as an H200."""
    deeper = [more for more in stages if more > config.stages]
    return not deeper or shared_bytes(config.swapped(stages=deeper[0]), spec) > H200.shared_bytes


USUAL = {"producer_registers": 40, "wait_depth": 1, "store_stages": 2}
"""The ordinary values of the knobs that `core` moves one at a time."""
USUAL_AT_LAUNCH = {"group": 4, "keep_a": 0, "keep_b": 0, "keep_out": 0, "prefetch": 0}
"""Of those told at launch."""
SMALL_STAGES = (4, 6, 7, 8, 9, 12)
LARGE_STAGES = (3, 4, 5, 6, 7)

RESTRICTIONS = {
    restriction.rule: restriction
    for restriction in (
        Restriction(
            "consumers by rows",
            "64 rows feed one consumer, more are divided by two, ping-pong has two",
            _wastes_consumers,
        ),
        Restriction("pipeline depth", "less than 96 KiB in flight does not cover the latency of memory", _is_shallow),
        Restriction(
            "depth beside copies",
            "less than 96 KiB in flight does not cover the latency of memory, nor 64 where the first stages are copied",
            _is_shallow_beside_copies,
        ),
        Restriction("cluster pairs", "clusters of four are left to the full space, for length", _is_doubly_clustered),
        Restriction("idle registers", "the consumers' registers do not change with the producer's", _registers_idle),
        Restriction(
            "one departure",
            "producer_registers, wait_depth and store_stages leave 40, 1 and 2 one at a time, for length",
            _departs_twice,
        ),
        Restriction(
            "clusters that pay",
            "two CTAs share tiles at most; with K divided along n alone, and then among three at most",
            _does_not_pay,
        ),
        Restriction(
            "narrow tiles",
            "less than 64 columns go with 64 rows, and 16 with K divided: others reached 0.93 of the best nowhere",
            _is_narrow,
        ),
        Restriction(
            "way out",
            "store_stages that suit the tile: 2 by turns, 2 from 128x128 on, 0 to 128x64; where K is divided 0 or 1; "
            "1 where A and B are swapped",
            _way_out_is_odd,
        ),
        Restriction("stages between", "7 and 9 stages where they are the most that fit", _is_between),
        Restriction(
            "swaps that pay",
            "A and B are swapped for tiles of 64x32 and 64x64 that no CTAs share",
            _swap_does_not_pay,
        ),
        Restriction(
            "departures at launch",
            "what is told at launch leaves its usual value only with as many stages as fit: group, or hints for "
            "operands, or both; the operand that is read once with many stages prefetched, both operands with two",
            _departs_at_launch,
            at_launch=True,
        ),
        Restriction("tiles of large products", "smaller ones than 128x64 are for small products", _is_tiny),
        Restriction("clusters of two", "larger ones are left to the full space, for length", _is_doubly_clustered),
        Restriction(
            "way out of large products",
            "store_stages that suit the tile: 1 or 2 by turns and below 128x128, else 2 or 4; where K is divided 0 or "
            "1, and tiles to 128x128",
            _way_out_is_odd_of_large,
        ),
        Restriction("turns wait", "by turns the other consumer's WGMMAs fill the wait", _waits_by_turns),
        Restriction(
            "swaps of large products",
            "A and B are swapped by turns, in tiles from 128x128 on",
            _swap_of_large_does_not_pay,
        ),
        Restriction(
            "departures of large products",
            "what is told at launch leaves its usual value only with as many stages as fit: group and keep_out, or "
            "hints and prefetch for 64 rows by turns",
            _departs_at_launch_of_large,
            at_launch=True,
        ),
        Restriction(
            "mirrored order",
            "tiles go along n, and along m where A and B are swapped, which is the same order of them",
            _is_mirrored_in_part,
            at_launch=True,
        ),
    )
}
"""Every restriction a table may name, by rule: reading a table looks them up to prove that it is exhaustive."""


def _named(*rules: str) -> tuple[Restriction, ...]:
    return tuple(RESTRICTIONS[rule] for rule in rules)


_CORE = SubSpace(
    name=CORE,
    knobs=completed(
        (
            Knob("block_m", (64, 128, 256)),
            Knob("block_n", (64, 128, 192, 256)),
            Knob("block_k", (64, 128)),
            Knob("stages", (3, 4, 6, 8)),
            Knob("consumers", (1, 2)),
            Knob("split_n", (False,), ordered=False),
            Knob("cluster_m", (1, 2)),
            Knob("cluster_n", (1, 2)),
            Knob("raster_along_n", (True,), ordered=False),
            Knob("group", (1, 4, 8, 16)),
            Knob("producer_registers", (24, 40)),
            Knob("wait_depth", (0, 1)),
            Knob("store_stages", (1, 2)),
            Knob("ping_pong", (False, True), ordered=False),
        )
    ),
    restrictions=_named("consumers by rows", "pipeline depth", "cluster pairs", "idle registers", "one departure"),
)


_LARGE = SubSpace(
    name=LARGE,
    knobs=completed(
        (
            Knob("block_m", (64, 128, 192, 256)),
            Knob("block_n", (64, 112, 128, 160, 192, 256)),
            Knob("block_k", (64,)),
            Knob("stages", LARGE_STAGES),
            Knob("consumers", (1, 2)),
            Knob("split_n", (False,), ordered=False),
            Knob("cluster_m", (1, 2)),
            Knob("cluster_n", (1, 2)),
            Knob("raster_along_n", (False, True), ordered=False),
            Knob("group", (1, 2, 4, 8)),
            Knob("producer_registers", (40,)),
            Knob("wait_depth", (0, 1)),
            Knob("store_stages", (0, 1, 2, 4)),
            Knob("ping_pong", (False, True), ordered=False),
            Knob("cluster_k", (1, 2)),
            Knob("l2_promotion", (128,)),
            Knob("keep_a", (-1, 0)),
            Knob("keep_b", (-1, 0)),
            Knob("keep_out", (-1, 0)),
            Knob("prefetch", (0, 2)),
            Knob("swap_ab", (False, True), ordered=False),
        )
    ),
    restrictions=_named(
        "consumers by rows",
        "tiles of large products",
        "pipeline depth",
        "clusters of two",
        "way out of large products",
        "turns wait",
        "swaps of large products",
        "mirrored order",
        "departures of large products",
    ),
)

_SMALL = SubSpace(
    name=SMALL,
    knobs=completed(
        (
            Knob("block_m", (64, 128)),
            Knob("block_n", (16, 32, 64, 128)),
            Knob("block_k", (64, 128)),
            Knob("stages", SMALL_STAGES),
            Knob("consumers", (1, 2)),
            Knob("split_n", (False,), ordered=False),
            Knob("cluster_m", (1, 2)),
            Knob("cluster_n", (1, 2)),
            Knob("raster_along_n", (False, True), ordered=False),
            Knob("group", (2, 4)),
            Knob("producer_registers", (40,)),
            Knob("wait_depth", (1,)),
            Knob("store_stages", (0, 1, 2)),
            Knob("ping_pong", (False, True), ordered=False),
            Knob("cluster_k", (1, 2, 3, 4, 8)),
            Knob("l2_promotion", (128,)),
            Knob("keep_a", (-1, 0)),
            Knob("keep_b", (-1, 0)),
            Knob("keep_out", (0,)),
            Knob("prefetch", (0, 2, 12)),
            Knob("cp_async_stages", (0, 1, 2, 4)),
            Knob("swap_ab", (False, True), ordered=False),
        )
    ),
    restrictions=_named(
        "consumers by rows",
        "depth beside copies",
        "clusters that pay",
        "narrow tiles",
        "way out",
        "stages between",
        "swaps that pay",
        "mirrored order",
        "departures at launch",
    ),
)

SUBSPACES = {subspace.name: subspace for subspace in (_CORE, _LARGE, _SMALL)}
"""The sub-spaces that `cupygemm record` can measure whole, by name."""
