"""What a test may need that a machine may lack: a Hopper GPU (marker `gpu`), NVRTC (`nvrtc`), Kernel Tuner, Optuna.

Without it such a test is skipped with the reason. CUPYGEMM_REQUIRE_GPU=1 and its like, which the make targets set where
they install what is needed, make it an error instead: a run that means to check must not skip.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from click.testing import CliRunner

from cupygemm import cli
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200
from cupygemm.errors import CompileError
from cupygemm.kernels import compiler, driver
from cupygemm.measurement import Measurement, Status
from cupygemm.problem import Problem
from cupygemm.runtime import api
from cupygemm.search.policy.weights import PolicyWeights
from cupygemm.search.recordings.recorded import file_name
from cupygemm.search.recordings.table import Table
from cupygemm.search.spaces.declared import RESTRICTIONS, SUBSPACES
from cupygemm.search.spaces.space import Knob, completed
from cupygemm.search.spaces.subspace import SubSpace
from tests.commands import PROBLEM, SMALL
from tests.fake_gpu import FakeGpu
from tests.gate import Gate
from tests.quick_training import QUICK


@cache
def missing_gpu() -> str | None:
    """Why nothing can run on a GPU here, or None."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    return None if driver.hopper_devices() else "there is no Hopper GPU"


@cache
def missing_nvrtc() -> str | None:
    """Why nothing can be compiled here, or None."""
    try:
        compiler.nvrtc_version()
    except CompileError as error:
        return str(error)
    return None


@cache
def missing_kernel_tuner() -> str | None:
    """Why Kernel Tuner cannot be run here, or None."""
    return None if importlib.util.find_spec("kernel_tuner") else "Kernel Tuner is not installed"


@cache
def missing_optuna() -> str | None:
    """Why Optuna cannot be run here, or None."""
    return None if importlib.util.find_spec("optuna") else "Optuna is not installed: the extra `compare` has it"


NEEDS: dict[str, tuple[Callable[[], str | None], str]] = {
    "gpu": (missing_gpu, "CUPYGEMM_REQUIRE_GPU"),
    "nvrtc": (missing_nvrtc, "CUPYGEMM_REQUIRE_NVRTC"),
    "kernel_tuner": (missing_kernel_tuner, "CUPYGEMM_REQUIRE_KERNEL_TUNER"),
    "optuna": (missing_optuna, "CUPYGEMM_REQUIRE_OPTUNA"),
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test whose need is not met, or fails it where that need was required."""
    for marker, (missing, required) in NEEDS.items():
        if item.get_closest_marker(marker) is None:
            continue
        reason = missing()
        if reason is None:
            continue
        if os.environ.get(required) == "1":
            pytest.fail(f"{required}=1, but {reason}", pytrace=False)
        pytest.skip(reason)


TOY_KNOBS = {
    "block_m": (64, 128, 256),
    "block_n": (64, 128, 256),
    "block_k": (64,),
    "stages": (3, 4, 6),
    "consumers": (1, 2),
    "split_n": (False,),
    "cluster_m": (1, 2),
    "cluster_n": (1,),
    "raster_along_n": (False, True),
    "group": (1, 8),
    "producer_registers": (40,),
    "wait_depth": (0, 1),
    "store_stages": (1, 2),
}
TOY = SubSpace(
    name="toy",
    knobs=completed([Knob(n, v, ordered=not isinstance(v[0], bool)) for n, v in TOY_KNOBS.items()]),
    restrictions=(RESTRICTIONS["consumers by rows"],),
)
"""A few hundred legal points: quick to enumerate, with single-valued, boolean and ordered knobs."""

CUBLAS_US = 50.0


def modelled(config: KernelConfig, offset: float = 0.0) -> Measurement:
    """What a made-up GPU answers: a smooth valley over the ordered knobs, steps for the others, and a few failures."""
    if config.block_n == 64 and config.stages == 6 and config.wait_depth == 0:
        return Measurement(Status.SERIALISED, registers=168, spill_bytes=0, detail="C7510")
    tile = abs(math.log2(config.block_m / 128)) + abs(math.log2(config.block_n / 256))
    us = 45.0 + offset + 6 * tile + 2 * abs(config.stages - 4) + 1.5 * (config.cluster_m == 1)
    us += (
        config.raster_along_n + 0.25 * abs(config.group - 8) + 3 * (config.wait_depth == 0) + 0.1 * config.store_stages
    )
    us += 0.3 * (config.consumers == 1) + 0.2 * (config.block_k == 128) + 0.4 * (config.cluster_n == 2)
    us += 0.01 * (config.producer_registers - 24)
    return Measurement(Status.OK, (us, us, us), (CUBLAS_US,) * 3, error=2e-4, registers=168, spill_bytes=0)


def toy_provenance(digest: str = "d1") -> dict:
    return {"date": "2026-11-29", "commit": None, "driver": "580.1", "cuda": "13.0", "source_digest": digest}


def table_of(problem: Problem, subspace: SubSpace, digest: str = "d1") -> Table:
    configs = subspace.configs(KernelSpec.of(problem), H200)
    measurements = {config: modelled(config) for config in configs}
    baselines = {"cublas_us": CUBLAS_US, "cublaslt_us": 49.0}
    return Table.of(problem, H200, subspace, measurements, toy_provenance(digest), baselines)


@pytest.fixture(scope="session")
def toy() -> SubSpace:
    """A small sub-space."""
    return TOY


@pytest.fixture(scope="session")
def model() -> Callable[..., Measurement]:
    """`modelled`: the made-up GPU."""
    return modelled


@pytest.fixture(scope="session")
def make_table() -> Callable[..., Table]:
    """`table_of`: a table of the made-up GPU over a sub-space."""
    return table_of


@pytest.fixture(scope="session")
def learnt(toy_table: Table, make_table: Callable[..., Table], toy: SubSpace) -> tuple[Table, Table]:
    """What `weights` have learnt from."""
    return toy_table, make_table(SMALL, toy)


@pytest.fixture(scope="session")
def weights(learnt: tuple[Table, Table]) -> PolicyWeights:
    """A policy trained with `QUICK`."""
    # JAX takes seconds to import, and few tests need it.
    from cupygemm.search.policy.transfer_training import train

    return train(learnt, QUICK, seed=5)


@pytest.fixture(scope="session")
def toy_table() -> Table:
    """The made-up GPU over the small sub-space."""
    return table_of(Problem(2048, 2048, 4096), TOY)


@pytest.fixture(scope="session")
def core_table() -> Table:
    """The made-up GPU over the sub-space that real tables are recorded over."""
    return table_of(Problem(2048, 2048, 4096), SUBSPACES["core"])


@pytest.fixture
def tables(tmp_path, toy_table, make_table, toy):
    """A folder with the tables of two problems on the made-up GPU."""
    folder = tmp_path / "tables"
    toy_table.write(folder / file_name(PROBLEM, H200))
    make_table(SMALL, toy).write(folder / file_name(SMALL, H200))
    return folder


@pytest.fixture
def run(tmp_path, tables, monkeypatch):
    """`cupygemm tune` on those tables, on a machine without a GPU."""
    monkeypatch.setattr(driver, "hopper_devices", list)
    store = tmp_path / "trials.sqlite"

    def call(*args: str, problem: str = "2048x2048x4096"):
        options = ["--tables", str(tables), "--store", str(store)]
        return CliRunner().invoke(cli.main, ["tune", problem, *options, *args])

    return call


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of `matmul` and `plan` that are decided anew."""
    calls: list[Any] = []
    decide = api.decide

    def counting(*arguments: Any) -> Any:
        calls.append(arguments)
        return decide(*arguments)

    monkeypatch.setattr(api, "decide", counting)
    return calls


@pytest.fixture
def gate(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Holds back what is compiled for the module's own `gpu`; lets it through in the end."""
    gate = Gate(gpu, monkeypatch)
    yield gate
    gate.pass_through()
