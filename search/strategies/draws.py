"""Draws from the distribution of CatCMA with margin by the hundred.

`cmaes` gives one draw at a time. Where one in thousands is legal that takes most of a search, so here the same is
computed for many at once, from the same fields of the optimiser, which are private: a test watches over them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from cmaes import CatCMAwM
from numpy.typing import NDArray


class Draws(NamedTuple):
    """Independent draws.

    Attributes:
        raw: (count, ordered), of the Gaussian; empty columns where nothing is ordered.
        ordered: (count, ordered), the indices that `raw` is rounded to.
        categories: (count, categorical), indices.
    """

    raw: NDArray[np.float64]
    ordered: NDArray[np.intp]
    categories: NDArray[np.intp]


def draw(optimizer: CatCMAwM, count: int, rng: np.random.Generator) -> Draws:
    """As `CatCMAwM.ask` draws one, with other random numbers."""
    inner: Any = optimizer
    none = np.zeros((count, 0))
    raw, ordered, categories = none, none.astype(np.intp), none.astype(np.intp)
    if inner._use_gaussian:
        axes, lengths = inner._eigen_decomposition()
        normal = rng.standard_normal((count, len(lengths)))
        raw = inner._mean + inner._sigma * inner._A * ((normal * lengths) @ axes.T)
        places = (raw[..., None] > inner._z_lim).sum(-1)
        # The values of an ordered knob are its indices, and a shorter one is padded with its last.
        ordered = inner._z_space[np.arange(places.shape[1]), places].astype(np.intp)
    if inner._use_categorical:
        uniform = rng.random((count, len(inner._q), 1))
        # Sums that end a little below 1 would leave a draw without a category.
        categories = np.minimum((uniform >= inner._q.cumsum(axis=1)).sum(-1), inner._K - 1)
    return Draws(raw, ordered, categories)
