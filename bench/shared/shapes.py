"""Shapes that dispatch has never seen: 200 to test it on (`unseen`), and others to learn from (`training`).

Half of the shapes to test on are sizes from 1 to 16384, log-uniform; of these every other one as drawn, where TMA can
seldom read the operands, and every other one rounded to multiples of eight. The other half are projections of open
language models, y = x · Wᵀ for so many tokens. No shape is of both lists, of the shipped bundle or of a recorded table.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from cupygemm.bundles.in_force import shipped_bundle
from cupygemm.problem import Problem
from cupygemm.search.recordings.recorded import recorded_tables
from cupygemm.views.gapless import gapless

T = TypeVar("T")

SEED = 20261130
TRAINING_SEED = 4711
SHAPES, DRAWN = 200, 102
"""To test on, and how many of these are drawn; the others are projections."""
LARGEST = 16384
LAYOUTS = ("nn",) * 5 + ("nt",) * 3 + ("tn", "tt")
"""As often as each is drawn."""
DTYPES_DRAWN = ("float16", "bfloat16")
TOKENS = (1, 7, 16, 100, 512, 2048, 8192)

PROJECTIONS = {
    "Llama-3.1-8B": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
    "Qwen3-32B": ((10240, 5120), (5120, 8192), (51200, 5120), (5120, 25600)),
    "Gemma-3-27B": ((8192, 5376), (5376, 4096), (5376, 21504)),
    "DeepSeek-V3": ((7168, 16384), (24576, 1536), (7168, 18432), (4096, 7168)),
}
"""N and K of products to test on: query, key and value in one, output, gate and up in one, down; or some of these."""

LEARNT_PROJECTIONS = {
    "Llama-3.3-70B": ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)),
    "Qwen2.5-7B": ((4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)),
    "Mistral-Small-24B": ((6144, 5120), (5120, 4096), (65536, 5120), (5120, 32768)),
    "Phi-4": ((7680, 5120), (5120, 5120), (35840, 5120), (5120, 17920)),
    "Gemma-3-12B": ((8192, 3840), (3840, 4096), (30720, 3840), (3840, 15360)),
    "gpt-oss-20b": ((5120, 2880), (2880, 4096), (5760, 2880), (2880, 2880)),
    "DeepSeek-V3": ((1536, 7168), (576, 7168), (32768, 512), (7168, 2048)),
}
LEARNT_TOKENS = (1, 2, 4, 7, 8, 12, 16, 24, 32, 48, 64, 100, 128, 200, 256, 384, 512, 768, 1024, 1500, 2048, 4096, 8192)
FURTHER = 840
FURTHER_TOKENS = (40, 72, 80, 96, 112, 144, 160, 176, 224, 240, 300, 320, 350, 448, 600, 700, 900, 1200, 3000)
"""From `FURTHER` shapes to learn from on, most are projections of so many tokens: until then few are between 64 and 512
and no powers of two, where cuBLAS's times differ most from one size to the next."""
MOST_US = 2500.0
"""What a shape to learn from may take at 700 TFLOP/s: longer ones cost more time than they teach."""


def unseen() -> tuple[Problem, ...]:
    """The 200 problems to test on, projections last."""
    generator = random.Random(SEED)
    known, found = set(_tuned()), dict[Problem, None]()
    while len(found) < DRAWN:
        problem = _drawn(generator, whole_eights=len(found) % 2 == 0)
        if _sizes(problem) not in known:
            known.add(_sizes(problem))
            found[problem] = None
    pairs = [pair for pairs in PROJECTIONS.values() for pair in pairs]
    projections = [projection(tokens, *pair) for pair in pairs for tokens in TOKENS]
    found |= dict.fromkeys(problem for problem in projections if _sizes(problem) not in known)
    return tuple(found)[:SHAPES]


def training(count: int) -> tuple[Problem, ...]:
    """Other problems, in an order in which every beginning is like the whole.

    Of ten, five are of multiples of eight, four of these with M as drawn where layouts allow; one is as drawn; four
    are projections. From the `FURTHER`th on two are of multiples of eight, and eight are projections.
    """
    generator = random.Random(TRAINING_SEED)
    known = {_sizes(problem) for problem in unseen()} | set(_tuned())
    pairs = [pair for pairs in LEARNT_PROJECTIONS.values() for pair in pairs]
    found = dict[Problem, None]()
    while len(found) < count:
        turn = len(found) % 10
        first, tokens = (6, LEARNT_TOKENS) if len(found) < FURTHER else (2, FURTHER_TOKENS)
        if turn >= first:
            n, k = _pick(generator, pairs)
            layout, dtype = ("nn", "float16") if turn == 9 else ("nt", "bfloat16")
            problem = projection(_pick(generator, tokens), n, k, dtype, layout)
        else:
            problem = _drawn(generator, whole_eights=turn < 5)
        if _sizes(problem) not in known and problem.flops / 700e6 < MOST_US:
            known.add(_sizes(problem))
            found[problem] = None
    return tuple(found)


def projection(tokens: int, n: int, k: int, dtype: str = "bfloat16", layout: str = "nt") -> Problem:
    """The product of so many tokens with a weight matrix of n outputs and k inputs."""
    return Problem(tokens, n, k, a_dtype=dtype, b_dtype=dtype, out_dtype=dtype, layout=layout)


def posed(problem: Problem) -> Problem | str:
    """What `matmul` makes of operands without gaps, or why TMA cannot read them.

    An operand of a single row or column is transposed as much as it is not: `matmul` takes what TMA can read.
    """
    found = gapless(problem)
    if isinstance(found, str):
        return found
    return found.problem if found.unread is None else found.unread


def _drawn(generator: random.Random, whole_eights: bool) -> Problem:
    m, n, k = (round(math.exp(generator.random() * math.log(LARGEST))) for _ in range(3))
    if whole_eights:
        m, n, k = (-(-size // 8) * 8 for size in (m, n, k))
    dtype = _pick(generator, DTYPES_DRAWN)
    return Problem(m, n, k, a_dtype=dtype, b_dtype=dtype, out_dtype=dtype, layout=_pick(generator, LAYOUTS))


def _pick(generator: random.Random, values: Sequence[T]) -> T:
    # Only `random()` is promised to be the same in every version of Python.
    return values[int(generator.random() * len(values))]


def _sizes(problem: Problem) -> tuple[int, int, int]:
    return problem.m, problem.n, problem.k


def _tuned() -> Iterator[tuple[int, int, int]]:
    """Sizes of all that was ever tuned, whatever the dtype and layout."""
    known: Iterable[Problem] = [entry.problem for entry in shipped_bundle().entries]
    yield from (_sizes(problem) for problem in (*known, *(table.problem for table in recorded_tables())))
