"""The kernels that the fuzz of `matmul` runs: a config for every problem, out of few enough to compile them all ahead.

A kernel is compiled for a spec, and of specs there are thousands. So cases are drawn of `FAMILIES`, which are all
dtypes with and without a stack, and each epilogue with some of them; and for each spec there are few configs, in turn,
so that each config meets many specs. What is told at launch differs from problem to problem.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from cupygemm.bundles.bundle import Bundle, BundleDevice, Entry, Measured, SearchInfo, Tool
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200, DeviceSpec
from cupygemm.epilogue import NONE
from cupygemm.kernels import compiler
from cupygemm.kernels.ahead import compile_ahead
from cupygemm.legality import illegal_reason
from cupygemm.problem import LAYOUTS, Problem
from tests.gpu.protocol import CONFIGS, fitting

CHOSEN = (
    "one consumer",
    "ping-pong",
    "wide, cluster 2x1",
    "K in two shares",
    "cluster 2x2",
    "K in eight shares",
    "columns split",
    "ping-pong of three, direct",
    "n of 8",
    "three consumers",
    "K in three shares, cluster 1x2, unequal parts",
    "n of 24, deep k",
    "four store buffers",
    "n of 200",
    "one stage copied",
    "copied, n of 24, direct",
    "copied, two consumers, two steps of rows",
    "copied, K in two shares, staged",
    "A and B swapped",
    "swapped, ping-pong, cluster 2x1",
    "swapped, K in two shares",
    "swapped, copied, n of 8",
)
"""Of `CONFIGS`: one for each way from the operands to the result."""
CONFIGS_A_SPEC = 3
"""Without an epilogue; with one there is one."""
TOLD: tuple[dict[str, Any], ...] = (
    {},
    {"group": 3, "raster_along_n": True, "prefetch": 2, "l2_promotion": 128},
    {"group": 64, "keep_a": 1, "keep_b": -1, "prefetch": 16, "l2_promotion": 0},
)
"""What a kernel learns at launch."""


class Family(NamedTuple):
    """Problems of the same kind: each layout of them, and rows of any length, are compiled."""

    epilogue: str
    dtype: str
    out_dtype: str
    batched: bool


OF_DTYPES = tuple(
    (dtype, out_dtype, batched)
    for dtype in ("float16", "bfloat16")
    for out_dtype in (dtype, "float32")
    for batched in (False, True)
)
PLAIN = tuple(Family(NONE, *each) for each in OF_DTYPES)
EPILOGUES = (
    "scaled",
    "bias_n",
    "bias_m",
    "bias_n+relu",
    "bias_n+gelu",
    "bias_m+gelu_tanh",
    "silu",
    "relu",
    "residual",
    "bias_n+residual",
    "bias_n+residual+silu",
    "bias_m+residual+relu",
    "residual+gelu_tanh",
    "bias_n+gelu_tanh",
)
# Five steps through eight combinations: each epilogue has two of different dtypes, and all come round.
FUSED = tuple(
    Family(epilogue, *OF_DTYPES[(5 * index + shift) % len(OF_DTYPES)])
    for index, epilogue in enumerate(EPILOGUES)
    for shift in (0, 3)
)
FAMILIES = PLAIN + FUSED


@cache
def configs_of(spec: KernelSpec) -> tuple[KernelConfig, ...]:
    """The configs that problems of a spec get."""
    problem = _any_problem(spec)
    first = zlib.crc32(repr(spec).encode()) % len(CHOSEN)
    turned = (CONFIGS[name] for name in (*CHOSEN[first:], *CHOSEN[:first]))
    legal = (fitting(each, problem) for each in turned)
    wanted = CONFIGS_A_SPEC if spec.epilogue == NONE else 1
    return tuple(itertools.islice((each for each in legal if illegal_reason(each, spec, H200) is None), wanted))


def config_of(problem: Problem) -> KernelConfig:
    """The config of a problem: always the same one."""
    found, chance = configs_of(KernelSpec.of(problem)), zlib.crc32(str(problem).encode())
    config, told = found[chance % len(found)], TOLD[chance // 64 % len(TOLD)]
    return config.swapped(**{**told, "prefetch": 0} if config.cp_async_stages else told)


def _any_problem(spec: KernelSpec) -> Problem:
    layout = ("n" if spec.a_major == "k" else "t") + ("n" if spec.b_major == "mn" else "t")
    size = 64 if spec.out_aligned else 65
    dtypes = {"a_dtype": spec.a_dtype, "b_dtype": spec.b_dtype, "out_dtype": spec.out_dtype}
    return Problem(64, size, 64, 2 if spec.batched else 1, layout=layout, epilogue=spec.epilogue, **dtypes)


class FuzzedBundle(Bundle):
    """Has a config for each problem."""

    def entry(self, problem: Problem) -> Entry:
        """One with `config_of` the problem."""
        search = SearchInfo(strategy="fuzz", evaluations=1)
        return Entry(problem=problem, config=config_of(problem), measured=Measured(us=1.0), search=search)

    def elsewhere(self, device: DeviceSpec) -> str | None:
        """Nothing to say: it is for any GPU."""
        return None


def bundle() -> FuzzedBundle:
    """One for the kernel's sources as they are."""
    tool = Tool(version="0", source_digest=compiler.source_digest())
    return FuzzedBundle(created="2026-11-30", tool=tool, device=BundleDevice.of(H200, {}))


def pairs() -> list[tuple[KernelSpec, KernelConfig]]:
    """All kernels of the families."""
    specs = {KernelSpec.of(problem) for family in FAMILIES for problem in _problems(family)}
    return sorted(((spec, config) for spec in specs for config in configs_of(spec)), key=repr)


def _problems(family: Family) -> Iterator[Problem]:
    for layout, n in itertools.product(LAYOUTS, (64, 65)):
        batch = 2 if family.batched else 1
        yield Problem(
            64, n, 64, batch, family.dtype, family.dtype, family.out_dtype, layout=layout, epilogue=family.epilogue
        )


def compile_all() -> int:
    """Compiles them into the cache, on all cores; how many there are.

    Raises:
        CompileError: of one, once the others are there: calls of it would be left to cuBLAS, and not be looked at.
    """
    wanted = pairs()
    failed = compile_ahead(wanted)
    if failed:
        raise next(iter(failed.values()))
    return len(wanted)
