"""Which problems are alike: families, held out as a whole where it is asked whether a policy carries over."""

from __future__ import annotations

from cupygemm.problem import Problem

FEW_ROWS = 128
SMALL_RESULT = 1024 * 1024
"""Elements: about what one wave of tiles computes."""


def family(problem: Problem) -> str:
    """The family of a problem, one of `names.FAMILIES`, by what bounds it.

    "splitk": a small result of a K four times as long as its sides. "skinny": 128 rows or columns at most. "short_k":
    a large result of a K of a quarter of its sides at most. "small": about one wave of tiles. "square": the rest.
    """
    longer, shorter = max(problem.m, problem.n), min(problem.m, problem.n)
    if problem.m * problem.n <= SMALL_RESULT / 4 and problem.k >= 4 * longer:
        return "splitk"
    if shorter <= FEW_ROWS:
        return "skinny"
    if problem.m * problem.n > SMALL_RESULT and problem.k <= shorter / 4:
        return "short_k"
    return "small" if problem.m * problem.n <= SMALL_RESULT else "square"
