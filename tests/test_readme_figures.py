"""Sentences of the README that no program writes: their figures are those of bench/results."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from cupygemm.reports import report

ROOT = Path(__file__).parent.parent
TEXT = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
TUNED = ("headline", "squares", "short_k", "ragged", "small", "splitk", "skinny")
LARGE = ("headline", "squares")


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def ratios(mode: str, *names: str, baseline: str = "cublas_us") -> list[float]:
    """Of all rows of files that were measured so."""
    rows = [row for name in names for row in recorded(name)["rows"] if row["mode"] == mode]
    return [found for row in rows if (found := report.ratio(row, baseline)) is not None]


def mean(values: list[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def scores(group: int, name: str) -> list[str]:
    """Of a strategy after each budget."""
    found = recorded("compare")["groups"][group]["strategies"][name]["score"]
    return [f"{found[str(budget)]:.2f}" for budget in recorded("compare")["budgets"]]


def of_stacks(other: str) -> list[float]:
    return [each[f"over {other}"] for each in recorded("stacks")["summary"].values() if each[f"over {other}"]]


def layer(epilogue: str) -> float:
    """A layer of the suite `fused` at 2048x2048x4096, over cuBLAS and a kernel more."""
    (row,) = (
        row
        for row in recorded("fused")["rows"]
        if (row["m"], row["n"], row["k"], row["mode"], row["epilogue"]) == (2048, 2048, 4096, "rotated", epilogue)
    )
    return float(row["cublas_us"] / row["cupygemm_us"])


def ahead_from_nothing() -> list[str]:
    """How many of Kernel Tuner's strategies end above all of ours that begin with nothing, and how many it has."""
    strategies = recorded("compare")["groups"][0]["strategies"].values()
    last = str(max(recorded("compare")["budgets"]))
    ours = max(each["score"][last] for each in strategies if each["package"] == "cupygemm" and not each["seeded"])
    theirs = [each["score"][last] for each in strategies if each["package"] == "kernel_tuner"]
    return [str(sum(score > ours for score in theirs)), str(len(theirs))]


UNSEEN = recorded("unseen")["summary"]
COPIES = sorted(each["speedup"] for each in recorded("packing")["summary"].values())
NTHS = {15: "fifteenth", 16: "sixteenth", 17: "seventeenth", 18: "eighteenth", 19: "nineteenth", 20: "twentieth"}


@pytest.mark.parametrize(
    ("sentence", "figures"),
    [
        (
            "is # times as fast as `cupy.matmul` at the geometric mean, and # at worst",
            [f"{UNSEEN['geometric mean over cupy.matmul']:.2f}", f"{UNSEEN['worst']:.2f}"],
        ),
        (
            "#% of them run an own kernel, # times as fast at the mean",
            [f"{100 * UNSEEN['share of own kernels']:.0f}", f"{UNSEEN['geometric mean of own kernels']:.2f}"],
        ),
        ("few tiles with a long K up to # times", [f"{max(ratios('rotated', 'splitk')):.1f}"]),
        ("in the L2 it is # at the least", [f"{min(ratios('resident', *TUNED)):.2f}"]),
        ("a short K up to # times", [f"{max(ratios('rotated', 'short_k')):.1f}"]),
        ("few rows up to # times", [f"{max(ratios('rotated', 'skinny')):.1f}"]),
        ("rows that cuBLAS reads badly up to # times", [f"{max(ratios('rotated', 'ragged')):.1f}"]),
        (
            "# of the # large products that were measured so take longer than cuBLAS, up to #%",
            [
                str(sum(each < 1 for each in ratios("sustained", *LARGE))),
                str(len(ratios("sustained", *LARGE))),
                f"{100 / min(ratios('sustained', *LARGE)) - 100:.1f}",
            ],
        ),
        (
            "`hybrid+` scores #, # and #, and plain local search with the same start #, # and #",
            [*scores(1, "hybrid+"), *scores(1, "local+")],
        ),
        ("From nothing # of Kernel Tuner's # strategies end ahead of ours", ahead_from_nothing()),
        (
            "none is slower than cuBLAS; the geometric mean is # times as fast, and # times",
            [f"{mean(ratios('rotated', 'grid_sample', baseline=name)):.2f}" for name in ("cublas_us", "cublaslt_us")],
        ),
        (
            "take a # to a # of the time of `cupy.matmul`",
            [NTHS[round(end(of_stacks("cupy.matmul")))] for end in (min, max)],
        ),
        ("are # to # times as fast as `torch.bmm`", [f"{end(of_stacks('torch.bmm')):.2f}" for end in (min, max)]),
        (
            "gelu at 2048×2048×4096 is # times as fast as cuBLAS and one kernel more (# times in gelu's tanh form",
            [f"{layer(f'bias_n+{name}'):.2f}" for name in ("gelu", "gelu_tanh")],
        ),
        (
            "# to # times as fast as `cupy.matmul` in 15 cases, and # times for a stack",
            [f"{COPIES[0]:.2f}", f"{COPIES[-2]:.1f}", f"{COPIES[-1]:.1f}"],
        ),
    ],
)
def test_a_sentence_says_what_is_recorded(sentence: str, figures: list[str]) -> None:
    found = re.search(re.escape(sentence).replace(r"\#", r"([\w.]+)"), TEXT)
    assert found is not None, "the README has no such sentence: write it anew, or take it out here"
    assert list(found.groups()) == figures


def test_no_product_of_the_grid_is_slower_than_cublas() -> None:
    assert min(ratios("rotated", "grid_sample")) >= 1
