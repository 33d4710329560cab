"""Named lists of problems to measure: the classes that `bench/results/` and the documents speak of."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cupygemm.dtypes import DTYPES
from cupygemm.errors import ProblemError
from cupygemm.problem import LAYOUTS, Problem

SIXTEEN_BITS = tuple(name for name, row in DTYPES.items() if row.bytes == 2)
GRID = tuple(2**power for power in range(6, 15))
"""Sizes of the grid: 64, 128, … 16384."""
GRID_SEED = 2026
GRID_SHAPES = 100
BY_WEIGHTS = (("bfloat16",), ("nt",))
"""Dtypes and layouts of x · Wᵀ."""


@dataclass(frozen=True)
class Suite:
    """Problems that are measured together.

    Attributes:
        about: what they have in common, in a few words.
        problems: different ones, in the order in which they are measured.
        seed: of the generator that drew them; None where they were named one by one.
    """

    about: str
    problems: tuple[Problem, ...]
    seed: int | None = None


def _problems(
    shapes: str, dtypes: Iterable[str] = ("float16",), layouts: Iterable[str] = ("nn",)
) -> tuple[Problem, ...]:
    """Every shape in every dtype and layout."""
    products = itertools.product(shapes.split(), dtypes, layouts)
    return tuple(Problem.parse(shape, dtype, layout=layout) for shape, dtype, layout in products)


def _stacks(shapes: str, batches: Iterable[int], **options: Iterable[str]) -> tuple[Problem, ...]:
    """Every shape so many times, in the dtypes and layouts that `_problems` takes."""
    return tuple(replace(problem, batch=batch) for problem in _problems(shapes, **options) for batch in batches)


def _fused(shape: str, *epilogues: str) -> tuple[Problem, ...]:
    """A shape with each epilogue."""
    return tuple(replace(Problem.parse(shape), epilogue=epilogue) for epilogue in epilogues)


def grid_sample(seed: int, number: int) -> tuple[Problem, ...]:
    """Different shapes of the grid, drawn at random: M, N and K each one of `GRID`, in float16.

    Args:
        seed: the same one gives the same shapes.
        number: how many, at most `len(GRID)` ** 3.
    """
    # Only `random()` is promised to be the same in every version of Python: so no `sample` here.
    generator = random.Random(seed)
    ranked = sorted((generator.random(), sizes) for sizes in itertools.product(GRID, repeat=3))
    return tuple(Problem(*sizes) for _, sizes in ranked[:number])


SUITES = {
    "headline": Suite("the shape that the project starts from", _problems("2048x2048x4096", SIXTEEN_BITS)),
    "squares": Suite("large squares", _problems("4096x4096x4096 8192x8192x8192 16384x16384x16384", SIXTEEN_BITS)),
    "short_k": Suite("large results of short K", _problems("4096x4096x1024 8192x8192x512 8192x16384x256")),
    "ragged": Suite(
        "sizes that tiles do not divide, some with padded rows",
        _problems("4095x4097x4096 2047x2048x4096 3000x5000x1000"),
    ),
    "layouts": Suite(
        "each operand stored by rows or transposed", _problems("2048x2048x4096 4096x4096x4096", layouts=LAYOUTS)
    ),
    "small": Suite("small products", _problems("512x512x512 1024x1024x1024 256x1024x1024 1024x1024x4096")),
    "splitk": Suite("few tiles and a long K", _problems("64x64x4096 128x256x4096 256x256x16384 512x512x8192")),
    "skinny": Suite(
        "one size far smaller than the others, down to a matrix times a vector",
        _problems(
            "16x4096x4096 64x4096x4096 128x4096x4096 128x12288x4096 16384x64x16384 16384x16384x64 "
            "1x4096x4096 4x4096x4096 8x4096x4096 1x4096x14336 4x4096x14336 8x4096x14336"
        ),
    ),
    "tokens": Suite(
        "a layer's products for numbers of tokens that are no powers of two",
        (
            *_problems(
                "72x4096x4096 144x4096x4096 200x4096x4096 300x4096x4096 320x4096x4096 600x4096x4096", *BY_WEIGHTS
            ),
            *_problems("144x8192x8192 300x8192x8192 320x8192x8192 600x8192x8192 200x4096x14336", *BY_WEIGHTS),
        ),
    ),
    "batched": Suite(
        "stacks of products, up to those of attention",
        (
            *_stacks("1024x1024x1024", (4, 16, 64), layouts=("nn", "nt")),
            *_stacks("1024x1024x1024", (16,), dtypes=("bfloat16",)),
            *_stacks("1024x1024x128", (64,), layouts=("nt",)),
            *_stacks("1024x128x1024 4096x128x128", (64,)),
        ),
    ),
    "fused": Suite(
        "products with epilogues",
        (
            *_fused("2048x2048x4096", "bias_n+gelu_tanh", "bias_n+gelu", "bias_n+relu"),
            *_fused("2048x2048x4096", "residual", "bias_n+residual+silu"),
            *_fused("512x512x512", "bias_n+relu"),
            *_fused("4096x4096x1024", "bias_n+gelu_tanh"),
            *_fused("128x4096x4096", "bias_n+silu"),
        ),
    ),
    "grid_sample": Suite(
        f"{GRID_SHAPES} shapes drawn from the powers of two from {GRID[0]} to {GRID[-1]}",
        grid_sample(GRID_SEED, GRID_SHAPES),
        GRID_SEED,
    ),
    "recorded": Suite(
        "the problems that the replay tables are of",
        _problems(
            "2048x2048x4096 4096x4096x4096 4096x4096x1024 8192x8192x512 512x512x512 1024x1024x1024 256x1024x1024 "
            "1024x1024x4096 64x64x4096 128x256x4096 256x256x16384 512x512x8192 16x4096x4096 128x4096x4096 1x4096x14336 "
            "16384x64x16384"
        ),
    ),
}
"""By name, in the order in which `cupygemm bench --list` shows them."""


def select(
    targets: Sequence[str], problem_of: Callable[[str], Problem] = Problem.parse
) -> tuple[tuple[Problem, ...], dict[str, Any]]:
    """What the targets of a command name.

    Args:
        targets: a suite, or shapes ("MxNxK"), or nothing.
        problem_of: what a shape is read with, which gives it dtypes and a layout; a suite has its own.

    Returns:
        the problems, each once, and what a results file says of where they come from: `suite` and `seed`.

    Raises:
        ProblemError: a target is neither, or a suite is not alone.
    """
    named = [target for target in targets if target in SUITES]
    if named and len(targets) > 1:
        raise ProblemError(f"{named[0]} is a suite: name one suite, or shapes")
    if named:
        suite = SUITES[named[0]]
        return suite.problems, {"suite": named[0]} | ({} if suite.seed is None else {"seed": suite.seed})
    unknown = [target for target in targets if target[:1].isalpha()]
    if unknown:
        raise ProblemError(f"there is no suite {unknown[0]!r}: they are {', '.join(SUITES)}")
    return tuple(dict.fromkeys(map(problem_of, targets))), {}


def listing(targets: Sequence[str] = ()) -> list[str]:
    """A line a suite: name, number of problems, and what they are; where a suite is named, a line a problem of it.

    Raises:
        ProblemError: a target is no suite, or a suite is not alone.
    """
    if targets:
        problems, facts = select(targets)
        if "suite" not in facts:
            raise ProblemError(f"{targets[0]} is no suite: they are {', '.join(SUITES)}")
        return [str(problem) for problem in problems]
    width = max(map(len, SUITES))
    return [f"{name:<{width}}  {len(suite.problems):>3}  {suite.about}" for name, suite in SUITES.items()]
