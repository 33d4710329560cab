"""The fuzz of `matmul` on a fake GPU: right products pass, and each fault that is planted is found."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cupygemm
from cupygemm.kernels import driver
from cupygemm.kernels.tensor_map import Matrix
from cupygemm.runtime import prepared
from tests.fake_gpu import FakeGpu
from tests.fake_products import fresh_gpu
from tests.fuzzing import kernels
from tests.fuzzing.cases import Array, Call, Case
from tests.fuzzing.examine import Examiner, Failure, Outcome
from tests.fuzzing.explore import Tally, explore
from tests.fuzzing.pools import Pools
from tests.fuzzing.storage import Storage, layout
from tests.fuzzing.strategies import cases

LONGEST = 2**11
CASES = 150
POOLS = Pools(lambda values: values, size=2**16)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    found = fresh_gpu(monkeypatch)
    module = found.cupy
    monkeypatch.setattr(driver, "cupy", lambda: module)
    cupygemm.use(kernels.bundle())
    return found


@pytest.fixture
def examine(gpu: FakeGpu) -> Examiner:
    return Examiner(POOLS, gpu.empty)


def plain(m: int = 24, n: int = 40, k: int = 16, dtype: str = "float16", **more: Any) -> Case:
    return Case(Array((m, k), dtype, Storage()), Array((k, n), dtype, Storage()), **more)


def test_random_cases_are_right(examine: Examiner) -> None:
    tally = explore(examine, cases(longest=LONGEST), CASES, 3)
    assert tally.failures == []
    assert tally.cases >= CASES
    assert tally.own >= 0.7 * tally.cases
    for trait in (
        "stacks",
        "an epilogue",
        "out",
        "out on another array",
        "broadcast axes",
        "axes backwards",
        "offsets",
    ):
        assert tally.counts[f"cases with {trait}"] > 0, trait


def test_results_without_axes_are_right(examine: Examiner) -> None:
    vector, scalar = Array((24,), "float16", Storage(offset=8)), Array((), "float16", Storage(offset=2))
    for more in ({}, {"out": scalar}, {"bias": scalar, "alpha": 0.5}, {"residual": scalar, "out": scalar}):
        outcome = examine(Case(vector, vector, **more))
        assert outcome.own + outcome.cublas == 2


def halves(a: Any, b: Any) -> Any:
    """Sums that are rounded to float16 with every addend."""
    total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), np.float16)
    for k in range(a.shape[-1]):
        total += a[..., k : k + 1].astype(np.float16) * b[..., k : k + 1, :].astype(np.float16)
    return total.astype(np.float32)


def one_wrong(a: Any, b: Any) -> Any:
    total = a.astype(np.float32) @ b.astype(np.float32)
    total[-1, -1, -1] = abs(total[-1, -1, -1]) + 8
    return total


def swapped_rows(a: Any, b: Any) -> Any:
    total = a.astype(np.float32) @ b.astype(np.float32)
    total[..., :2, :] = total[..., 1::-1, :]
    return total


@pytest.mark.parametrize("fault", [halves, one_wrong, swapped_rows])
@pytest.mark.parametrize("kind", ["zero_mean", "positive_mean"])
@pytest.mark.parametrize("terms", [{}, {"activation": "gelu", "alpha": 0.5}, {"out_dtype": "float32"}])
def test_wrong_values_are_found(
    gpu: FakeGpu, examine: Examiner, fault: Callable[[Any, Any], Any], kind: str, terms: dict[str, Any]
) -> None:
    case = plain(k=512, kind=kind, **terms)
    examine(case)
    gpu.accumulate = fault
    with pytest.raises(Failure, match="out of bounds"):
        examine(case)


def byte_at(gpu: FakeGpu, address: int) -> Any:
    return gpu.memory(Matrix(address, 1, 1, 16, "float16")).view(np.uint8)


PLACES = {
    "before": lambda result: result.pointer - 2,
    "behind": lambda result: result.pointer + (result.rows - 1) * result.row_stride + result.columns * 2,
    "between rows": lambda result: result.pointer + result.columns * 2,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("gap", [8, 16])
def test_what_is_written_around_out_is_found(gpu: FakeGpu, examine: Examiner, place: str, gap: int) -> None:
    case = plain(out=Array((24, 40), "float16", Storage(gap=gap, offset=8)))
    assert examine(case) == Outcome(own=2)

    def spoil(result: Matrix) -> None:
        byte_at(gpu, PLACES[place](result))[0, 0] ^= 1

    gpu.afterwards = spoil
    with pytest.raises(Failure, match="was written to"):
        examine(case)


@pytest.mark.parametrize("out", [None, Array((24, 40), "float16", Storage())])
def test_operands_that_are_written_to_are_found(gpu: FakeGpu, examine: Examiner, out: Array | None) -> None:
    def spoil(result: Matrix) -> None:
        operand = next(matrix for matrix, _ in gpu.maps.values() if matrix.columns == 16)
        byte_at(gpu, operand.pointer)[0, 0] ^= 1

    gpu.afterwards = spoil
    with pytest.raises(Failure, match="was written to"):
        examine(plain(out=out))


def test_operands_of_the_call_before_are_found(examine: Examiner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "_place_in", lambda tensor_map: prepared._Nowhere())
    with pytest.raises(Failure, match=r"call 1, answered by own: .* out of bounds"):
        examine(plain())


def test_the_result_of_the_call_before_is_found(examine: Examiner, monkeypatch: pytest.MonkeyPatch) -> None:
    first: list[Any] = []
    matmul = cupygemm.matmul

    def late(a: Any, b: Any, out: Any) -> Any:
        first.append(out)
        matmul(a, b, first[0])
        return out

    monkeypatch.setattr(cupygemm, "matmul", late)
    with pytest.raises(Failure, match="960 elements are out of bounds"):
        examine(plain(out=Array((24, 40), "float16", Storage())))


def test_what_only_a_repeated_call_would_get_wrong_is_run(gpu: FakeGpu, examine: Examiner) -> None:
    """Out on an operand, or an operand where TMA cannot read it, after a call of the same shapes without."""
    out = Array((16, 16), "float16", Storage())
    for call in (Call(out_on="a"), Call(out_on="b", out_shift=8), Call(a_shift=1), Call(b_shift=4), Call(out_shift=1)):
        case = plain(16, 16, 16, out=out, calls=(Call(), Call(), call, Call()))
        outcome = examine(case)
        assert outcome.own + outcome.cublas == 4


def test_a_choice_that_is_not_kept_is_found(examine: Examiner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupygemm, "matmul", lambda a, b, out, **options: driver.cupy().matmul(a, b, out, **options))
    with pytest.raises(Failure, match="CuPy ran"):
        examine(plain())


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (lambda result: result.copy(), "something else than out"),
        (lambda result: result.astype(np.float32), "something else than out"),
    ],
)
def test_what_is_returned_is_looked_at(
    examine: Examiner, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[Any], Any], match: str
) -> None:
    matmul = cupygemm.matmul
    monkeypatch.setattr(cupygemm, "matmul", lambda *arrays, **options: wrong(matmul(*arrays, **options)))
    with pytest.raises(Failure, match=match):
        examine(plain(out=Array((24, 40), "float16", Storage())))


def test_another_dtype_or_shape_is_found(examine: Examiner, monkeypatch: pytest.MonkeyPatch) -> None:
    matmul = cupygemm.matmul
    for wrong in (lambda result: result.astype(np.float32), lambda result: result[None], lambda result: result.T):
        monkeypatch.setattr(cupygemm, "matmul", lambda *a, wrong=wrong, **o: wrong(matmul(*a, **o)))
        with pytest.raises(Failure, match="returns"):
            examine(plain())


def test_errors_that_are_not_cupys_are_failures(gpu: FakeGpu, examine: Examiner) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise TypeError("not understood")

    module, odd = driver.cupy(), plain(k=15)
    theirs, module.matmul = module.matmul, refuse
    assert examine(odd) == Outcome(refused=2)
    module.matmul = theirs
    kept = cupygemm.matmul
    cupygemm.matmul = refuse  # type: ignore[assignment]
    try:
        for case in (odd, plain()):
            with pytest.raises(Failure, match="not understood"):
                examine(case)
    finally:
        cupygemm.matmul = kept


def test_what_cupy_gets_wrong_by_itself_is_counted_apart(examine: Examiner) -> None:
    module = driver.cupy()
    theirs = module.matmul
    module.matmul = lambda *arguments, **options: theirs(*arguments, **options) * np.float16(2)
    assert examine(plain(k=15)) == Outcome(wrong_in_cupy=2)


def test_a_failure_is_shrunk_and_can_be_run_again(gpu: FakeGpu, examine: Examiner) -> None:
    def wrong_if_wide(a: Any, b: Any) -> Any:
        total = a.astype(np.float32) @ b.astype(np.float32)
        if b.shape[-1] >= 4:
            total[..., 3] = 999
        return total

    gpu.accumulate = wrong_if_wide
    noted: list[int] = []
    strategy = cases(families=kernels.PLAIN[:1], longest=LONGEST)
    tally = explore(examine, strategy, 60, 1, meanwhile=lambda tally: noted.append(len(tally.failures)))
    assert tally.failures
    assert noted[-1] == len(tally.failures)
    shrunk = Case.read(tally.failures[0]["case"])
    assert shrunk.right.shape[-1] == 4
    assert (shrunk.out, shrunk.bias, math.prod(shrunk.a.shape)) == (None, None, shrunk.k)
    with pytest.raises(Failure, match="out of bounds"):
        examine(shrunk)
    gpu.accumulate = lambda a, b: a.astype(np.float32) @ b.astype(np.float32)
    examine(shrunk)


def test_what_fails_once_is_kept(examine: Examiner) -> None:
    calls = itertools.count()

    def flaky(case: Case) -> Outcome:
        if next(calls) == 20:
            raise Failure(case, "once")
        return examine(case)

    tally = explore(flaky, st.builds(plain, st.integers(1, 99), seed=st.integers(0, 9)), 40, 0)
    assert [failure["reason"] for failure in tally.failures] == ["once"]
    assert tally.cases >= 40


def test_a_broken_device_ends_it() -> None:
    def broken(case: Case) -> Outcome:
        raise RuntimeError("an illegal memory access was encountered")

    tally = explore(broken, cases(), 50, 0)
    assert (tally.over, tally.cases, len(tally.failures)) == (True, 0, 1)
    assert "illegal memory access" in tally.failures[0]["reason"]


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
@given(case=cases())
def test_a_case_is_a_line(case: Case) -> None:
    assert "\n" not in str(case)
    assert Case.read(str(case)) == case


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
@given(data=st.data())
def test_layouts_are_those_of_numpys_views(data: st.DataObject) -> None:
    """Every element lies in the extent, and no two lie on one another but along broadcast axes."""
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    steps = tuple(data.draw(st.sampled_from([1, 2, -1, 0])) for _ in shape)
    storage = Storage(
        order, steps, data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3)), data.draw(st.integers(0, 9))
    )
    strides, first, extent = layout(shape, storage)
    places = {
        first + sum(index * stride for index, stride in zip(indices, strides, strict=True))
        for indices in itertools.product(*map(range, shape))
    }
    assert len(places) == math.prod(size for size, step in zip(shape, steps, strict=True) if step)
    assert min(places) >= storage.offset
    assert max(places) < extent


def test_all_kernels_of_the_families_are_legal_and_of_each_kind() -> None:
    pairs = kernels.pairs()
    assert len(set(pairs)) == len(pairs) <= 600
    compiled = {config.swapped(store_stages=0) for _, config in pairs}
    assert compiled >= {kernels.CONFIGS[name].swapped(store_stages=0) for name in kernels.CHOSEN}
    assert {family.epilogue for family in kernels.FUSED} == set(kernels.EPILOGUES)


def test_tallies_count_calls_and_cases() -> None:
    tally = Tally()
    tally.add(plain(), Outcome(own=2))
    tally.add(plain(k=15), Outcome(own=1, cublas=1))
    assert (tally.cases, tally.own, tally.counts["calls own"], tally.counts["calls cublas"]) == (2, 1, 3, 1)
