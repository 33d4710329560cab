"""`cupygemm.matmul` has the meaning that `numpy.matmul` has, whichever kernel runs: on a fake GPU, against NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.dtypes import OPERAND_DTYPES
from cupygemm.measuring.verify import numpy_dtype
from cupygemm.problem import Problem
from tests.fake_gpu import DeviceArray, FakeDevice, FakeGpu
from tests.fake_products import SMALL, bundle_of, fresh_gpu, plain, right

N, K = 40, 16


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return fresh_gpu(monkeypatch)


def array(gpu: FakeGpu, shape: tuple[int, ...], dtype: str = "float16", seed: int = 0) -> Any:
    """Small integers, which all dtypes hold; without a sign for those that have none."""
    made = gpu.empty(shape, numpy_dtype(dtype) if dtype in OPERAND_DTYPES else dtype)
    made[...] = np.random.default_rng(seed).integers(0 if dtype[0] in "ub" else -2, 3, shape)
    return made


OWN = {
    # a, b: the one product of two matrices that it is
    ((24, K), (K, N)): Problem(24, N, K),
    ((K,), (K, N)): Problem(1, N, K),
    ((24, K), (K,)): Problem(24, 1, K, layout="nt"),
    ((K,), (K,)): Problem(1, 1, K, layout="nt"),
    ((5, 24, K), (K, N)): Problem(120, N, K),
    ((2, 3, 24, K), (K, N)): Problem(144, N, K),
    ((2, 3, 1, K), (K, N)): Problem(6, N, K),
    ((5, 24, K), (1, K, N)): Problem(120, N, K),
    ((5, 24, K), (1, 1, K, N)): Problem(120, N, K),
    ((24, K), (1, K, N)): Problem(24, N, K),
    ((1, 1, 24, K), (1, K, N)): Problem(24, N, K),
    ((5, 24, K), (K,)): Problem(120, 1, K, layout="nt"),
    ((K,), (1, K, N)): Problem(1, N, K),
    # Rows of one element more than TMA steps by need not be stepped over where there is only one.
    ((17,), (17, N)): Problem(1, N, 17),
}


@pytest.mark.parametrize("out", [None, "float16", "F", "strided"])
@pytest.mark.parametrize("shapes", OWN)
def test_own_kernels_run_what_is_one_product_of_matrices(
    gpu: FakeGpu, shapes: tuple[tuple[int, ...], tuple[int, ...]], out: str | None
) -> None:
    problem = OWN[shapes]
    a, b = (array(gpu, shape, seed=seed) for seed, shape in enumerate(shapes))
    # TMA cannot store rows of 2 bytes.
    cupygemm.use(bundle_of(problem, config=SMALL.swapped(store_stages=0 if problem.n == 1 else 1)))
    wanted = right(a, b)
    target = None
    if out is not None:
        target = gpu.empty(wanted.shape, np.float16)
        target = gpu.empty(wanted.shape[::-1], np.float16).T if out == "F" else target
        target = gpu.empty((*wanted.shape, 2), np.float16)[..., 0] if out == "strided" else target
    assert cupygemm.explain(a, b, target).problem == problem
    result = cupygemm.matmul(a, b, out=target)
    assert target is None or result is target
    assert (result.shape, result.dtype, type(result)) == (wanted.shape, np.float16, DeviceArray)
    assert target is not None or result.flags.c_contiguous
    np.testing.assert_array_equal(plain(result), wanted)
    assert (len(gpu.launches), gpu.fallbacks) == (1, [])


SHAPES = [
    ((3, 2), (2, 4)),
    ((2,), (2, 4)),
    ((3, 2), (2,)),
    ((2,), (2,)),
    ((7, 3, 2), (7, 2, 4)),
    ((7, 3, 2), (2, 4)),
    ((3, 2), (7, 2, 4)),
    ((7, 1, 3, 2), (1, 5, 2, 4)),
    ((1, 3, 2), (7, 2, 4)),
    ((7, 3, 2), (1, 2, 4)),
    ((2,), (7, 2, 4)),
    ((7, 3, 2), (2,)),
    # Nothing to add up gives zeros, and no rows no result.
    ((3, 0), (0, 4)),
    ((0,), (0,)),
    ((0,), (0, 4)),
    ((7, 3, 0), (0, 4)),
    ((7, 3, 0), (7, 0, 4)),
    ((0, 2), (2, 4)),
    ((3, 2), (2, 0)),
    ((0, 3, 2), (2, 4)),
    ((0, 3, 2), (1, 2, 4)),
    ((5, 0, 3, 2), (2, 4)),
    ((7, 0, 2), (2, 4)),
]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_shapes_are_numpys(gpu: FakeGpu, shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: str) -> None:
    a, b = (array(gpu, shape, dtype, seed) for seed, shape in enumerate(shapes))
    result = cupygemm.matmul(a, b)
    assert (result.dtype, result.shape) == (a.dtype, right(a, b).shape)
    np.testing.assert_array_equal(plain(result), right(a, b))


DTYPES = ["bool", "int8", "uint8", "int32", "uint64", "float16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize(("left", "right_"), list(itertools.product(DTYPES, DTYPES)))
def test_dtypes_are_promoted_as_numpy_does(gpu: FakeGpu, left: str, right_: str) -> None:
    problem = Problem(8, 8, 8)
    cupygemm.use(bundle_of(problem))
    a, b = array(gpu, (8, 8), left), array(gpu, (8, 8), right_, 1)
    result = cupygemm.matmul(a, b)
    wanted = np.matmul(np.asarray(a), np.asarray(b))
    assert result.dtype == wanted.dtype
    np.testing.assert_array_equal(np.asarray(result), wanted)
    assert len(gpu.launches) == (left == right_ == "float16")


VIEWS = {
    "transposed": lambda gpu: array(gpu, (K, 24)).T,
    "every other row": lambda gpu: array(gpu, (48, K))[::2],
    "every other column": lambda gpu: array(gpu, (24, 2 * K))[:, ::2],
    "upside down": lambda gpu: array(gpu, (24, K))[::-1],
    "columns backwards": lambda gpu: array(gpu, (24, K))[:, ::-1],
    "a late start": lambda gpu: array(gpu, (24, K + 8))[:, 3 : K + 3],
    "one row many times": lambda gpu: np.broadcast_to(array(gpu, (1, K)), (24, K), subok=True),
    "a diagonal of stacks": lambda gpu: array(gpu, (24, K, K))[:, :, 0],
}


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("case", VIEWS)
def test_views_are_multiplied_as_they_are_seen(gpu: FakeGpu, case: str, side: str) -> None:
    view = VIEWS[case](gpu)
    for letters in ("nn", "tn", "nt", "tt"):
        sizes = (24, N, K) if side == "a" else (N, 24, K)
        cupygemm.use(bundle_of(Problem(*sizes, layout=letters)))
    other = array(gpu, (K, N), seed=3)
    a, b = (view, other) if side == "a" else (other.T, view.T)
    np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))


MISTAKES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "no axes on the left": ((), (3, 2)),
    "no axes on the right": ((3, 2), ()),
    "no axes": ((), ()),
    "sizes": ((3, 2), (3, 2)),
    "a vector too short": ((3, 2), (1,)),
    "two vectors": ((3,), (2,)),
    "stacks": ((5, 3, 2), (4, 2, 4)),
    "a stack of none and one of two": ((0, 1, 1), (2, 1, 1)),
    "stacks and sizes": ((5, 3, 1), (3, 1, 4)),
    "no rows, and sizes": ((0, 2), (3, 0)),
}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_value_errors(gpu: FakeGpu, case: str, dtype: str) -> None:
    a, b = (array(gpu, shape, dtype) for shape in MISTAKES[case])
    with pytest.raises(ValueError, match=r"\w"):
        cupygemm.matmul(a, b)
    with pytest.raises(ValueError, match=r"\w"):
        np.matmul(np.asarray(a, np.float32), np.asarray(b, np.float32))
    assert cupygemm.explain(a, b).kernel == "cublas"


@pytest.mark.parametrize("value", [[[1.0]], 3.0, np.ones((K, N), np.float16), "ab"])
def test_what_is_no_array_of_cupy_is_a_type_error(gpu: FakeGpu, value: Any) -> None:
    a = array(gpu, (24, K))
    for operands in ((a, value), (value, a), (value, value)):
        with pytest.raises(TypeError, match="incorrect type"):
            cupygemm.matmul(*operands)
        assert cupygemm.explain(*operands).reason == "an operand is not a CuPy array"


@pytest.mark.parametrize("side", ["a", "b"])
def test_none_never_reaches_cupy(gpu: FakeGpu, side: str) -> None:
    a = array(gpu, (24, K))
    with pytest.raises(TypeError, match=f"operand {side} is None"):
        cupygemm.matmul(*((None, a) if side == "a" else (a, None)))
    assert gpu.fallbacks == []


# Options


def test_options_at_their_defaults_change_nothing(gpu: FakeGpu) -> None:
    problem = Problem(24, N, K)
    cupygemm.use(bundle_of(problem))
    a, b = array(gpu, (24, K)), array(gpu, (K, N), seed=1)
    defaults = {"axes": None, "axis": None, "casting": "same_kind", "dtype": None, "keepdims": False, "order": "K"}
    assert cupygemm.explain(a, b, **defaults, signature=None).kernel == "own"
    np.testing.assert_array_equal(plain(cupygemm.matmul(a, b, **defaults, signature=None)), right(a, b))
    assert (len(gpu.launches), gpu.fallbacks) == (1, [])


@pytest.mark.parametrize(
    "options",
    [
        {"casting": "no"},
        {"order": "F"},
        {"axes": [(0, 1), (0, 1), (1, 0)]},
        {"signature": "ee->e"},
        {"casting": "unsafe", "dtype": "float32"},
        {"subok": False},
    ],
)
def test_other_options_are_cupys(gpu: FakeGpu, options: dict[str, Any]) -> None:
    cupygemm.use(bundle_of(Problem(24, N, K), Problem(24, N, K, out_dtype="float32")))
    a, b = array(gpu, (24, K)), array(gpu, (K, N), seed=1)
    seen: list[dict[str, Any]] = []
    cupygemm.kernels.driver.cupy().matmul = lambda a, b, out, **given: seen.append(given)
    cupygemm.matmul(a, b, **options)
    assert (seen, gpu.launches) == ([options], [])
    assert cupygemm.explain(a, b, **options).reason.endswith("options of cupy.matmul")


# Stacks that fall back


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_cupy_gets_stacks_of_16_bits_as_matrices(gpu: FakeGpu, dtype: str) -> None:
    a, b = array(gpu, (5, 3, 2), dtype), array(gpu, (2, 4), dtype, 1)
    seen: list[tuple[int, ...]] = []
    matmul = gpu.matmul

    def spy(a: Any, b: Any, out: Any = None, **options: Any) -> Any:
        seen.append(a.shape)
        return matmul(a, b, out, **options)

    cupygemm.kernels.driver.cupy().matmul = spy
    np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
    assert seen == [(5, 3, 2) if dtype == "float32" else (15, 2)]


# Devices


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_all_runs_on_the_device_of_the_operands(gpu: FakeGpu, dtype: str) -> None:
    cupygemm.use(bundle_of(Problem(24, N, K)))
    with FakeDevice(gpu, 1):
        a, b = array(gpu, (24, K), dtype), array(gpu, (K, N), dtype, 1)
        stack = a[None]
    for left in (a, stack):
        result = cupygemm.matmul(left, b)
        assert result.device.id == 1
        np.testing.assert_array_equal(plain(result), right(left, b))
    assert [launch.device for launch in gpu.launches] + gpu.fallback_devices == [1, 1]
    assert gpu.current == [0]
    with pytest.raises(ValueError, match=r"\w"):
        cupygemm.matmul(a, a)
    assert gpu.current == [0], "an error leaves the device as it was"
