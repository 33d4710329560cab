"""Regression trees, boosted (Friedman 2001) with squared error on binned features: trained here, used by `trees`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cupygemm.choosing.trees import Floats, Trees

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Boosting:
    """How trees are grown.

    Attributes:
        trees, depth, rate: how many, how deep, and how much of each counts.
        least: rows on either side of a split.
        shrink: rows that a leaf is averaged with, of value 0.
        rows, columns: shares that each tree sees.
        bins: of a feature, by its quantiles.
    """

    trees: int = 250
    depth: int = 5
    rate: float = 0.08
    least: int = 10
    shrink: float = 1.0
    rows: float = 0.7
    columns: float = 0.5
    bins: int = 32


def boosted(rows: Floats, targets: Values, how: Boosting, seed: int) -> Trees:
    """Trees that approximate targets [n] of rows [n, features]; the same for the same seed."""
    generator = np.random.default_rng(seed)
    edges = [_edges(column, how.bins) for column in rows.T]
    binned = np.stack([np.searchsorted(edge, column) for edge, column in zip(edges, rows.T, strict=True)], axis=1)
    start = float(targets.mean())
    left = targets - start
    grown = []
    for _ in range(how.trees):
        tree = _tree(rows, binned, edges, left, how, generator)
        left = left - tree(rows)
        grown.append(tree)
    features, thresholds, leaves = (
        np.concatenate([getattr(tree, name) for tree in grown]) for name in ("features", "thresholds", "leaves")
    )
    return Trees(start, features, thresholds, leaves)


def together(several: list[Trees]) -> Trees:
    """Trees that say the mean of what several say."""
    return Trees(
        float(np.mean([each.start for each in several])),
        np.concatenate([each.features for each in several]),
        np.concatenate([each.thresholds for each in several]),
        (np.concatenate([each.leaves for each in several]) / len(several)).astype(np.float32),
    )


def _edges(column: Floats, bins: int) -> Floats:
    values = np.unique(column)
    if len(values) <= bins:
        return (values[1:] + values[:-1]) / np.float32(2)
    return np.unique(np.quantile(column, np.linspace(0, 1, bins + 1)[1:-1]).astype(np.float32))


def _tree(
    rows: Floats, binned: NDArray[Any], edges: list[Floats], left: Values, how: Boosting, generator: np.random.Generator
) -> Trees:
    """One tree, grown level by level on some of the rows and features."""
    count, width = rows.shape
    used = np.flatnonzero(generator.random(count) < how.rows)
    columns = np.sort(generator.choice(width, max(1, int(width * how.columns)), replace=False))
    seen, wanted = binned[np.ix_(used, columns)], left[used]
    inner = 2**how.depth - 1
    features, thresholds = np.zeros(inner, np.int32), np.full(inner, np.inf, np.float32)
    node = np.zeros(len(used), np.int64)
    for level in range(how.depth):
        column, edge, splits = _splits(seen, wanted, node, 2**level, how)
        for index in np.flatnonzero(splits):
            feature = columns[column[index]]
            features[2**level - 1 + index] = feature
            thresholds[2**level - 1 + index] = edges[feature][edge[index]]
        right = splits[node] & (seen[np.arange(len(used)), column[node]] > edge[node])
        node = 2 * node + right
    sums, counts = np.bincount(node, wanted, 2**how.depth), np.bincount(node, minlength=2**how.depth)
    leaves = (how.rate * sums / (counts + how.shrink)).astype(np.float32)
    return Trees(0.0, features[None], thresholds[None], leaves[None])


def _splits(
    seen: NDArray[Any], wanted: Values, node: NDArray[np.int64], nodes: int, how: Boosting
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    """Of each node the column and the bin, the last one to the left, that explain most; and whether any split may."""
    width, bins = seen.shape[1], how.bins
    key = ((node[:, None] * width + np.arange(width)) * bins + seen).ravel()
    shape = nodes, width, bins
    sums = np.bincount(key, np.repeat(wanted, width), nodes * width * bins).reshape(shape).cumsum(2)
    counts = np.bincount(key, minlength=nodes * width * bins).reshape(shape).cumsum(2)
    total, rows = sums[:, :, -1:], counts[:, :, -1:]
    gains = sums**2 / (counts + how.shrink) + (total - sums) ** 2 / (rows - counts + how.shrink)
    gains -= total**2 / (rows + how.shrink)
    gains[(counts < how.least) | (rows - counts < how.least)] = 0.0
    flat = gains.reshape(nodes, -1)
    best = flat.argmax(axis=1)
    return best // bins, best % bins, flat[np.arange(nodes), best] > 0
