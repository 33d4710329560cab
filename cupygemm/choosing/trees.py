"""Boosted regression trees as plain arrays: what they say of rows of features, in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Trees:
    """A sum of complete binary trees of one depth, d, of which there are t.

    Attributes:
        start: what every sum begins with.
        features: int32 [t, 2^d - 1]: column that each inner node looks at, level by level.
        thresholds: float32 [t, 2^d - 1]: larger values go right; infinity where a node does not split.
        leaves: float32 [t, 2^d].
    """

    start: float
    features: NDArray[np.int32]
    thresholds: Floats
    leaves: Floats

    def __post_init__(self) -> None:
        trees, inner = self.features.shape
        if self.thresholds.shape != (trees, inner) or self.leaves.shape != (trees, inner + 1) or inner & (inner + 1):
            raise ValueError(
                f"trees: nodes {self.features.shape}, thresholds {self.thresholds.shape}, leaves {self.leaves.shape}: "
                "legal are [t, 2^d - 1] twice and [t, 2^d]"
            )

    def __call__(self, rows: Floats) -> Floats:
        """Sums of rows, float32 [n, features], as float32 [n]."""
        count, width = rows.shape
        trees, inner = self.features.shape
        values = rows.ravel()
        # Indices of the machine's own width: any other is converted at every step.
        origins = (np.arange(count) * width)[:, None]
        place = np.broadcast_to(self._roots, (count, trees))
        for _ in range(inner.bit_length()):
            right = values.take(self._columns.take(place) + origins) > self._limits.take(place)
            place = 2 * place + right + self._steps
        leaf = self.leaves.ravel().take(place + self._to_leaves)
        total: Floats = leaf.sum(axis=1) + np.float32(self.start)
        return total

    @cached_property
    def _roots(self) -> NDArray[np.intp]:
        """Places of the roots among all nodes; of a node at p the left child is at 2p and `_steps`."""
        return np.arange(0, self.features.size, self.features.shape[1], dtype=np.intp)

    @cached_property
    def _steps(self) -> NDArray[np.intp]:
        return 1 - self._roots

    @cached_property
    def _to_leaves(self) -> NDArray[np.intp]:
        """From the place that a child of the last level would have to its leaf."""
        trees, inner = self.features.shape
        return np.arange(-inner, trees - inner, dtype=np.intp)

    @cached_property
    def _columns(self) -> NDArray[np.intp]:
        return self.features.ravel().astype(np.intp)

    @cached_property
    def _limits(self) -> Floats:
        return self.thresholds.ravel()

    def to_arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """The arrays by names that begin with `name`, for `from_arrays`."""
        return {
            f"{name}_start": np.array(self.start),
            f"{name}_features": self.features.astype(np.int16),
            f"{name}_thresholds": self.thresholds,
            f"{name}_leaves": self.leaves,
        }

    @classmethod
    def from_arrays(cls, name: str, arrays: Any, width: int) -> Trees:
        """The inverse of `to_arrays`, for rows of `width` features.

        Raises:
            KeyError, ValueError, TypeError: an array is missing or of another kind.
        """
        features = np.ascontiguousarray(arrays[f"{name}_features"], np.int32)
        if features.ndim != 2 or features.size == 0 or features.min() < 0 or features.max() >= width:
            raise ValueError(f"{name}: nodes must look at features 0 to {width - 1}")
        thresholds, leaves = (
            np.ascontiguousarray(arrays[f"{name}_{what}"], np.float32) for what in ("thresholds", "leaves")
        )
        if not np.isfinite(leaves).all() or np.isnan(thresholds).any():
            raise ValueError(f"{name}: leaves must be finite and thresholds numbers")
        return cls(float(arrays[f"{name}_start"]), features, thresholds, leaves)
