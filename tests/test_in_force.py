"""Which bundle decides, of `use`, CUPYGEMM_BUNDLE or the package, and when it is read; lost and old entries."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.bundles import in_force
from cupygemm.bundles.bundle import Bundle
from cupygemm.bundles.in_force import SHIPPED
from cupygemm.choosing.dispatch import Dispatcher
from cupygemm.config import KernelConfig
from cupygemm.device import H200
from cupygemm.kernels import compiler, driver
from cupygemm.problem import Problem
from cupygemm.runtime import api
from tests.fake_gpu import FakeGpu
from tests.fake_products import LARGE, PROBLEM, SMALL, bundle_of, fresh_gpu, operands, plain, right

H100 = replace(H200, name="NVIDIA H100 PCIe", sm_count=114)
OURS = SMALL.swapped(stages=2)
"""The config of the bundle that ships in these tests."""
OLD = "0123456789abcdef"
"""A digest of other kernel sources."""

Ship = Callable[..., list[Bundle]]


def slower(bundle: Bundle, us: float = 50.0, cublas_us: float | None = 48.5) -> Bundle:
    """A bundle whose entries were measured to lose."""
    times = {"us": us, "cublas_us": cublas_us, "speedup": (cublas_us or 48.5) / us}
    entries = [
        entry.model_copy(update={"measured": entry.measured.model_copy(update=times)}) for entry in bundle.entries
    ]
    return bundle.model_copy(update={"entries": entries})


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A GPU on which the shipped bundle is in force."""
    gpu = fresh_gpu(monkeypatch)
    monkeypatch.delenv("CUPYGEMM_BUNDLE")
    return gpu


@pytest.fixture
def ship(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> Ship:
    """Puts a bundle in the place of the shipped one; gives a list that grows whenever it is read."""

    def put(*problems: Problem, config: KernelConfig = OURS, **made: Any) -> list[Bundle]:
        bundle, reads = bundle_of(*(problems or (PROBLEM,)), config=config, **made), []

        def read() -> Bundle:
            reads.append(bundle)
            return bundle

        monkeypatch.setattr(in_force, "shipped_bundle", read)
        return reads

    return put


# Order


def test_the_shipped_bundle_comes_last(
    gpu: FakeGpu, ship: Ship, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(PROBLEM, replace(PROBLEM, m=8))
    a, b = operands(gpu)
    assert (cupygemm.explain(a, b).bundle, cupygemm.explain(a, b).config) == (SHIPPED, OURS)
    path = tmp_path / "tuned.yaml"
    bundle_of(PROBLEM).save(path)
    monkeypatch.setenv("CUPYGEMM_BUNDLE", str(path))
    monkeypatch.setattr(api, "_dispatcher", Dispatcher())
    assert cupygemm.explain(a, b).bundle == str(path)
    with cupygemm.use(bundle_of(PROBLEM, config=LARGE)):
        assert cupygemm.explain(a, b).config == LARGE
        assert [name for name, _ in api.bundles_in_force()] == ["the bundle given", str(path), SHIPPED]
    assert cupygemm.explain(a[:8], b).bundle == SHIPPED
    np.testing.assert_array_equal(plain(cupygemm.matmul(a[:8], b)), right(a[:8], b))
    assert gpu.fallbacks == []


def test_one_of_another_hopper_gpu_still_comes_before_it(gpu: FakeGpu, ship: Ship) -> None:
    ship()
    a, b = operands(gpu)
    with cupygemm.use(bundle_of(PROBLEM, config=LARGE, device=H100)):
        assert cupygemm.explain(a, b).config == LARGE


def test_it_is_used_on_another_hopper_gpu_with_one_warning(
    gpu: FakeGpu, ship: Ship, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.specs[0] = H100
    ship()
    choice = cupygemm.explain(*operands(gpu))
    assert (choice.bundle, "measured on NVIDIA H200 (132 SMs)" in choice.reason) == (SHIPPED, True)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING


def test_a_word_turns_it_off(gpu: FakeGpu, ship: Ship, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = ship()
    monkeypatch.setenv("CUPYGEMM_BUNDLE", "none")
    a, b = operands(gpu)
    assert cupygemm.explain(a, b).reason == "no bundle in force has a config for it"
    assert api.bundles_in_force() == []
    with cupygemm.use(bundle_of(PROBLEM)):
        assert cupygemm.explain(a, b).config == SMALL
    assert cupygemm.explain(a, b).kernel == "cublas"
    assert reads == []


def test_a_file_of_that_name_is_named_with_its_folder(
    gpu: FakeGpu, ship: Ship, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship()
    bundle_of(PROBLEM, config=LARGE).save(tmp_path / "none")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUPYGEMM_BUNDLE", "./none")
    assert cupygemm.explain(*operands(gpu)).config == LARGE
    assert [name for name, _ in api.bundles_in_force()] == ["none", SHIPPED]


def test_bundles_named_to_a_dispatcher_are_all_there_is(gpu: FakeGpu, ship: Ship) -> None:
    reads = ship()
    assert Dispatcher({"mine": bundle_of(Problem(8, 8, 8))}).choose(*operands(gpu))[0].kernel == "cublas"
    assert reads == []


def test_its_problems_count_where_there_is_no_other_bundle(gpu: FakeGpu, ship: Ship) -> None:
    ship()
    dispatcher = Dispatcher()
    assert dispatcher.problems() == [PROBLEM]
    dispatcher.push(bundle_of(Problem(8, 8, 8)), "mine")
    assert dispatcher.problems() == [Problem(8, 8, 8)]


# When it is read


def test_it_is_read_when_no_other_bundle_decides(gpu: FakeGpu, ship: Ship) -> None:
    reads = ship()
    a, b = operands(gpu)
    with cupygemm.use(bundle_of(PROBLEM)):
        cupygemm.matmul(a, b)
    cupygemm.matmul(a.astype(np.float32), b.astype(np.float32))
    assert reads == []
    cupygemm.matmul(a, b)
    assert len(reads) == 1


def test_it_is_not_read_for_a_gpu_that_could_not_use_it(gpu: FakeGpu, ship: Ship) -> None:
    gpu.specs[0] = replace(H200, name="NVIDIA A100", compute_capability=(8, 0))
    reads = ship()
    cupygemm.matmul(*operands(gpu))
    assert reads == []


def test_importing_reads_nothing() -> None:
    source = "import cupygemm; from cupygemm.runtime import api; from cupygemm.bundles import in_force; "
    source += "print(in_force.shipped_bundle.cache_info().misses)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_matmul_runs_its_own_kernel_without_any_setup(gpu: FakeGpu) -> None:
    problem = min((entry.problem for entry in in_force.shipped_bundle().entries), key=lambda problem: problem.flops)
    a, b = operands(gpu, problem)
    np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
    assert (len(gpu.launches), gpu.fallbacks) == (1, [])
    assert cupygemm.explain(a, b).bundle == SHIPPED


def test_what_was_measured_of_an_entry_is_said() -> None:
    entry = next(entry for entry in in_force.shipped_bundle().entries if entry.measured.cublaslt_us is not None)
    measured, said = entry.measured, str(Dispatcher().choose_on(entry.problem, H200)).splitlines()
    over = f"{entry.speedup:.3f}× cuBLAS, {measured.cublaslt_us / measured.us:.3f}× the best cublasLt"
    assert any(line.startswith(f"  measured: {measured.us:.2f} µs a launch, {over}") for line in said)


# Entries that lose


def test_an_entry_that_lost_leaves_the_product_to_cublas(
    gpu: FakeGpu, ship: Ship, caplog: pytest.LogCaptureFixture
) -> None:
    reads = ship()
    a, b = operands(gpu)
    cupygemm.use(slower(bundle_of(PROBLEM)))
    choice = cupygemm.explain(a, b)
    assert choice.reason == (
        "the bundle given has measured cuBLAS to be faster: 50.00 µs to its 48.50, a speedup of 0.970"
    )
    assert (choice.kernel, choice.problem, choice.config, choice.bundle) == (
        *("cublas", PROBLEM, None),
        "the bundle given",
    )
    assert "  measured: 50.00 µs a launch, 0.970× cuBLAS" in str(choice).splitlines()
    np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
    # It has decided: no older bundle is asked, and nothing is compiled.
    assert (len(gpu.fallbacks), gpu.compiled, reads, caplog.records) == (1, [], [], [])


def test_a_lost_entry_without_the_time_of_cublas_has_its_ratio(gpu: FakeGpu) -> None:
    cupygemm.use(slower(bundle_of(PROBLEM), cublas_us=None))
    assert cupygemm.explain(*operands(gpu)).reason.endswith("faster: 50.00 µs, a speedup of 0.970")


def test_a_lost_entry_that_is_not_legal_decides_nothing(gpu: FakeGpu, ship: Ship) -> None:
    ship()
    cupygemm.use(slower(bundle_of(PROBLEM, config=LARGE.swapped(stages=99))))
    assert cupygemm.explain(*operands(gpu)).config == OURS


def test_what_lost_runs_where_it_is_to_be_measured(gpu: FakeGpu) -> None:
    choice, plan = Dispatcher({"mine": slower(bundle_of(PROBLEM))}, even_slower=True).choose(*operands(gpu))
    assert (choice.kernel, choice.config, plan is None) == ("own", SMALL, False)


def test_what_lost_is_told_for_a_gpu_that_is_not_here(gpu: FakeGpu) -> None:
    choice = Dispatcher({"mine": slower(bundle_of(PROBLEM))}).choose_on(PROBLEM, H200)
    assert (choice.kernel, "a speedup of 0.970" in choice.reason) == ("cublas", True)


# Entries of other kernel sources


def test_entries_of_other_sources_are_used_with_one_warning_a_bundle(
    gpu: FakeGpu, caplog: pytest.LogCaptureFixture
) -> None:
    cupygemm.use(bundle_of(PROBLEM, replace(PROBLEM, m=8), digest=OLD))
    a, b = operands(gpu)
    for rows in (24, 8, 24):
        np.testing.assert_array_equal(plain(cupygemm.matmul(a[:rows], b)), right(a[:rows], b))
    assert (len(gpu.launches), gpu.fallbacks) == (3, [])
    said = (f"measured with other kernel sources ({OLD}, now {compiler.source_digest()})", "`cupygemm tune`")
    choice = cupygemm.explain(a, b)
    assert (choice.kernel, choice.config) == ("own", SMALL)
    assert all(words in choice.reason for words in said)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("cupygemm.choosing.dispatch", logging.WARNING)
    assert all(words in record.getMessage() for words in ("the bundle given was", *said))


def test_of_the_shipped_bundle_that_is_for_debugging(
    gpu: FakeGpu, ship: Ship, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "cupygemm")
    ship(digest=OLD)
    choice = cupygemm.explain(*operands(gpu))
    assert (choice.bundle, "measured with other kernel sources" in choice.reason) == (SHIPPED, True)
    (record,) = caplog.records
    assert (record.levelno, record.getMessage().startswith("the shipped bundle was measured with other")) == (
        *(logging.DEBUG,),
        True,
    )


def test_a_config_that_the_sources_no_longer_allow_is_passed_over(gpu: FakeGpu, ship: Ship) -> None:
    ship()
    cupygemm.use(bundle_of(PROBLEM, config=LARGE.swapped(stages=99), digest=OLD))
    assert cupygemm.explain(*operands(gpu)).config == OURS


def test_show_config_lists_it_last(gpu: FakeGpu, ship: Ship, monkeypatch: pytest.MonkeyPatch) -> None:
    ship()
    monkeypatch.setattr(driver, "devices", tuple)
    monkeypatch.setattr(driver, "newest_cuda", lambda: None)
    cupygemm.use(bundle_of(Problem(8, 8, 8)))
    told = cupygemm.show_config("dicts")
    assert told is not None
    assert list(told["bundles"].values()) == [
        "the bundle given, 1 entry of NVIDIA H200",
        "the shipped bundle, 1 entry of NVIDIA H200",
    ]
