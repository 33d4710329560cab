"""NVIDIA's heuristics as a rival of the policy: how they are asked, what their answers become, and their absence."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from bench.shared import heuristics
from bench.shared.heuristics import Heuristics, Suggestion, nearest, unavailable
from cupygemm.config import KernelConfig
from cupygemm.device import H200
from cupygemm.errors import ConfigError
from cupygemm.problem import Problem
from cupygemm.reports.report import render
from cupygemm.search.policy.weights import shipped_weights
from tests.commands import PROBLEM

ELSEWHERE = replace(H200, name="NVIDIA B200", compute_capability=(10, 0))
NAMED = Suggestion(128, 256, 64, 2, 1, 1, 4, 1)


def said(suggestion: Suggestion, warp: int) -> SimpleNamespace:
    """A kernel as the package has it."""
    m, n, k, cluster_m, cluster_n, split_k, stages, swizzle = suggestion
    return SimpleNamespace(
        **{"cta_tile_m": m, "cta_tile_n": n, "cta_tile_k": k, "cluster_m": cluster_m, "cluster_n": cluster_n},
        **{"split_k": split_k, "stages": stages, "swizzle_factor": swizzle, "warp_tile_m": warp},
    )


class Interface:
    """What is asked of the package, and two tiles of a warp for each thing that it says."""

    asked: ClassVar[list[Any]] = []
    says = (NAMED, NAMED._replace(cluster_m=1))

    def __init__(self, **options: Any) -> None:
        self.asked.append(options)

    def makeNvMatmulHeuristicsProblem(self, *fields: Any) -> Any:
        return fields

    def get(self, problem: Any, count: int, precision: str) -> list[dict[str, Any]]:
        self.asked.append((problem, precision))
        found = [said(each, warp) for each in self.says for warp in (64, 32)]
        return [{"kernel": kernel, "runtime": 1e-5} for kernel in found[:count]]


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package that is none of NVIDIA's."""
    fake = ModuleType(heuristics.MODULE)
    fake.__spec__ = ModuleSpec(heuristics.MODULE, None)
    fake.NvMatmulHeuristicsInterfaceEx = Interface  # type: ignore[attr-defined]
    fake.NvMatmulHeuristicsTarget = SimpleNamespace(CUTLASS3=4)  # type: ignore[attr-defined]
    fake.NvMatmulHeuristicsFlags = SimpleNamespace(PERF_MODEL_BASED_AUTO_TUNING=8)  # type: ignore[attr-defined]
    fake.NvMatmulHeuristicsNvidiaGpu = {"H200_SXM": 9003}  # type: ignore[attr-defined]
    layouts = {"NN_ROW_MAJOR": 0, "TN_ROW_MAJOR": 2}
    fake.NvMatmulHeuristicsMatmulLayout = layouts  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, heuristics.MODULE, fake)
    monkeypatch.setattr(heuristics, "version", lambda: "0.0")
    monkeypatch.setattr(Interface, "asked", [])
    return fake


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, heuristics.MODULE, None)  # type: ignore[arg-type]


def test_it_is_asked_for_the_gpu_and_the_problem(package: ModuleType) -> None:
    problem = Problem(64, 128, 256, batch=3, a_dtype="bfloat16", b_dtype="bfloat16", out_dtype="float32", layout="tn")
    found = Heuristics(H200).suggestions(problem)
    assert Interface.asked == [{"backend": 4, "flags": 8, "gpu": 9003}, ((64, 128, 256, 2, 3), "TSS")]
    assert found == list(Interface.says)  # what differs in the tile of a warp alone counts once


def test_without_the_package_it_is_said_why(no_package: None) -> None:
    wanted = "nvidia-matmul-heuristics is not installed: install the extra `heuristics`"
    assert wanted in str(unavailable([H200]))
    with pytest.raises(ConfigError, match=wanted):
        Heuristics(H200)


def test_a_gpu_that_it_is_told_no_name_of_is_said(package: ModuleType) -> None:
    assert unavailable([H200]) is None
    assert "no GPU called NVIDIA B200: it is told NVIDIA H100" in str(unavailable([H200, ELSEWHERE]))


def test_a_library_that_does_not_load_is_one_line(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**options: Any) -> None:
        raise OSError("no such file")

    monkeypatch.setattr(package, "NvMatmulHeuristicsInterfaceEx", broken)
    with pytest.raises(ConfigError, match=r"nvidia-matmul-heuristics: its library cannot be loaded: no such file"):
        Heuristics(H200)


CONFIG = KernelConfig(128, 256, 64, 4, 2, False, 2, 1, True, 1, 40, 1, 2)


def test_what_a_table_has_is_taken_as_it_is() -> None:
    others = [CONFIG.swapped(stages=3), CONFIG.swapped(block_m=64), CONFIG.swapped(cluster_m=1)]
    assert nearest([NAMED], [*others, CONFIG], cost=hash) == [CONFIG]


@pytest.mark.parametrize(
    ("named", "there", "taken"),
    [
        (NAMED._replace(block_n=160), [{"block_n": 64}, {"block_n": 128}, {"block_n": 256}], 1),
        (NAMED._replace(stages=7), [{"stages": 4}, {"stages": 6}, {"stages": 8}], 2),
        (NAMED._replace(cluster_n=4), [{"cluster_n": 1}, {"cluster_n": 2}], 1),
        (NAMED._replace(cluster_k=7), [{"cluster_k": 4}, {"cluster_k": 8}], 1),
        (NAMED._replace(group=2), [{"group": 1}, {"group": 8}], 0),
        # the tile goes before the cluster, that before the stages, and those before the swizzle
        (NAMED, [{"block_m": 64}, {"cluster_m": 1, "stages": 3, "group": 8}], 1),
        (NAMED, [{"cluster_m": 1}, {"stages": 12, "group": 8}], 1),
        (NAMED, [{"stages": 3}, {"group": 8}], 1),
    ],
)
def test_else_the_nearest_is_taken(named: Suggestion, there: list[dict[str, int]], taken: int) -> None:
    configs = [CONFIG.swapped(**changes) for changes in there]
    assert nearest([named], configs, cost=hash) == [configs[taken]]


def test_what_is_left_open_is_decided_by_the_cost() -> None:
    alike = [CONFIG.swapped(store_stages=stages, ping_pong=True) for stages in (1, 2, 4)]
    for best in alike:
        assert nearest([NAMED], alike, cost=lambda config, best=best: config != best) == [best]
    # also between two that are equally near
    near = [CONFIG.swapped(block_n=128), CONFIG.swapped(block_m=256)]
    for best in near:
        assert nearest([NAMED], near, cost=lambda config, best=best: config != best) == [best]


def test_suggestions_keep_their_order_and_count_once() -> None:
    one, two = CONFIG, CONFIG.swapped(block_m=64)
    named = [Suggestion.of(two), NAMED, NAMED._replace(stages=5), Suggestion.of(two)]
    assert nearest(named, [one, two], cost=hash) == [two, one]
    assert nearest([], [one], cost=hash) == []


@pytest.fixture
def program(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """bench.transfer on two small tables, with the shipped policy in place of those that it would train."""
    pytest.importorskip("jax")
    pytest.importorskip("flax")
    from bench import transfer

    monkeypatch.setattr(transfer, "train", lambda others, options, seed: shipped_weights())
    monkeypatch.setattr(transfer, "version", heuristics.version)
    monkeypatch.setattr(transfer, "STRATEGIES", ("local",))
    monkeypatch.setattr(transfer, "BUDGETS", (5, 10))

    def run() -> dict[str, Any]:
        output = tmp_path / "transfer.json"
        assert transfer.main(["--tables", str(tables), "--seeds", "1", "-o", str(output)]) == 0
        found: dict[str, Any] = json.loads(output.read_text())
        return found

    return run


def test_the_program_scores_it_like_the_others(package: ModuleType, program: Any, toy_table: Any) -> None:
    document = program()
    assert document["nvMatmulHeuristics"] == {"version": "0.0", "gpus": ["H200_SXM"]}
    row = next(row for row in document["rows"] if row["problem"] == str(PROBLEM))
    for way, cost in (
        ("nvMatmulHeuristics", None),
        ("nvMatmulHeuristics at best", lambda config: toy_table.times_us[config] or 1e9),
    ):
        assert 0 < row["suggestions"][way][0] <= row["suggestions"][way][1] <= 1
        if cost is not None:
            best = min(cost(config) for config in nearest(Interface.says[:1], toy_table.rows, cost))
            assert row["suggestions"][way][0] == round(toy_table.optimum_us / best, 4)
    assert row["suggestions"]["nvMatmulHeuristics at best"][0] >= row["suggestions"]["nvMatmulHeuristics"][0]
    assert row["named"] == 2
    text = render(document)
    assert "nvMatmulHeuristics 0.0, asked for H200_SXM, named 2 to 2 different configs a problem." in text
    assert "| nvMatmulHeuristics at best |" in text


def test_the_program_leaves_it_out_where_it_is_not_installed(no_package: None, program: Any) -> None:
    document = program()
    assert all("nvMatmulHeuristics" not in way for row in document["rows"] for way in row["suggestions"])
    text = render(document)
    assert "nvMatmulHeuristics is left out: nvidia-matmul-heuristics is not installed" in text
    assert "| nvMatmulHeuristics" not in text


def test_the_real_package_answers_the_same_each_time(toy_table: Any) -> None:
    pytest.importorskip(heuristics.MODULE, reason="nvidia-matmul-heuristics is not installed (extra `heuristics`)")
    for problem in (PROBLEM, Problem(16, 4096, 4096), Problem(512, 512, 512, layout="tt", batch=4)):
        found = Heuristics(H200).suggestions(problem)
        assert len(found) >= 3
        assert found == Heuristics(H200).suggestions(problem)
        assert all(1 <= field <= 256 for each in found for field in each)
        taken = nearest(found, toy_table.rows, cost=lambda config: config)
        assert taken
        assert taken[0].block_m == found[0].block_m
    assert heuristics.version().startswith("0.1.0.")
