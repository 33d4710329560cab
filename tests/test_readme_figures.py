"""Sentences of the README that no program writes: their figures are those of bench/results."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from cupygemm.bundles.in_force import shipped_bundle
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
    """How many of Kernel Tuner's strategies are above all of ours that begin with nothing after 150 evaluations, how
    many it has, and how many are after 500."""
    strategies = recorded("compare")["groups"][0]["strategies"].values()
    theirs = [each["score"] for each in strategies if each["package"] == "kernel_tuner"]
    ours = [each["score"] for each in strategies if each["package"] == "cupygemm" and not each["seeded"]]
    ahead = {
        budget: sum(score[budget] > max(each[budget] for each in ours) for score in theirs) for budget in ("150", "500")
    }
    return [str(ahead["150"]), str(len(theirs)), str(ahead["500"])]


def table_row(mode: str, *names: str) -> list[str]:
    """Means over cuBLAS and the best cublasLt, then the least and the most over cuBLAS."""
    ours = ratios(mode, *names)
    figures = (mean(ours), mean(ratios(mode, *names, baseline="cublaslt_us")), min(ours), max(ours))
    return [f"{each:.2f}" for each in figures]


UNSEEN = recorded("unseen")["summary"]
OF_UNSEEN = [row["cublas_us"] / row["cupygemm_us"] for row in recorded("unseen")["rows"]]
COPIES = sorted(each["speedup"] for each in recorded("packing")["summary"].values())
NTHS = {15: "fifteenth", 16: "sixteenth", 17: "seventeenth", 18: "eighteenth", 19: "nineteenth", 20: "twentieth"}


@pytest.mark.parametrize(
    ("sentence", "figures"),
    [
        (
            "never tuned, `cupygemm.matmul` over `cupy.matmul` | # | | #, # |",
            [f"{each:.2f}" for each in (UNSEEN["geometric mean over cupy.matmul"], UNSEEN["worst"], max(OF_UNSEEN))],
        ),
        (
            "#% run an own kernel, # times as fast at the mean, and the others are left to cuBLAS; the slowest are at "
            "#, # and #, and the # ms",
            [
                f"{100 * UNSEEN['share of own kernels']:.0f}",
                f"{UNSEEN['geometric mean of own kernels']:.2f}",
                *(f"{each:.2f}" for each in sorted(OF_UNSEEN)[:3]),
                f"{UNSEEN['decision, µs, median'] / 1000:.1f}",
            ],
        ),
        ("a hundred drawn at random | # | # | #, # |", table_row("rotated", "grid_sample")),
        ("lists the # problems of the bundle", [str(len(shipped_bundle().entries))]),
        ("2048×2048×4096 | # | # | #, # |", table_row("rotated", *LARGE)),
        ("short K | # | # | #, # |", table_row("rotated", "short_k")),
        ("small, 512 to 1024 | # | # | #, # |", table_row("rotated", "small")),
        ("few tiles, long K | # | # | #, # |", table_row("rotated", "splitk")),
        ("one short side | # | # | #, # |", table_row("rotated", "skinny")),
        ("reads badly | # | # | #, # |", table_row("rotated", "ragged")),
        ("for long at the power limit | # | # | #, # |", table_row("sustained", *LARGE)),
        (
            "in the L2 it is # at the least over cuBLAS, and # products with a long K lose to the best cublasLt, at "
            "worst by #.",
            [
                f"{min(ratios('resident', *TUNED)):.2f}",
                {2: "two"}[sum(each < 1 for each in ratios("resident", *TUNED, baseline="cublaslt_us"))],
                f"{min(ratios('resident', 'splitk', baseline='cublaslt_us')):.2f}",
            ],
        ),
        (
            "# of the # large products that were measured so take longer than cuBLAS, up to #%, and all # longer than "
            "the best cublasLt, up to #%",
            [
                str(sum(each < 1 for each in ratios("sustained", *LARGE))),
                str(len(ratios("sustained", *LARGE))),
                f"{100 / min(ratios('sustained', *LARGE)) - 100:.1f}",
                str(sum(each < 1 for each in ratios("sustained", *LARGE, baseline="cublaslt_us"))),
                f"{100 / min(ratios('sustained', *LARGE, baseline='cublaslt_us')) - 100:.1f}",
            ],
        ),
        (
            "`hybrid+` scores #, # and #, and plain local search with the same start #, # and #",
            [*scores(1, "hybrid+"), *scores(1, "local+")],
        ),
        (
            "From nothing # of Kernel Tuner's # strategies are ahead of ours after 150 evaluations, and # after 500",
            ahead_from_nothing(),
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
