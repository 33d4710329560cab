"""`cupygemm.matmul` of stacks on real arrays, against float64 and in CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.errors import CaptureError
from cupygemm.kernels import driver
from cupygemm.measuring import verify
from cupygemm.measuring.verify import activated
from tests.gpu.everything import everything

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def in_force() -> Iterator[None]:
    with cupygemm.use(everything()):
        yield


def draw(*shape: int, dtype: str = "float16", seed: int = 0) -> Any:
    cupy = driver.cupy()
    values = cupy.random.default_rng(seed).standard_normal(shape, dtype=cupy.float32)
    return values.astype(verify.numpy_dtype(dtype))


def wide(array: Any) -> Any:
    return array.astype(np.float64)


def close(result: Any, wanted: Any, k: int) -> bool:
    """Within what rounding costs the result, and half a percent of the size that sums of k products have."""
    unit = 2.0**-8 if result.dtype.name == "bfloat16" else 2.0**-10
    return bool((abs(wide(result) - wanted) <= unit * abs(wanted) + 2.0**-9 * k**0.5).all())


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((5, 48, 64), (5, 64, 40)),
        ((5, 48, 64), (1, 64, 40)),
        ((48, 64), (5, 64, 40)),
        ((1, 48, 64), (5, 64, 40)),
        ((2, 3, 48, 64), (2, 3, 64, 40)),
        ((64,), (5, 64, 40)),
        ((5, 48, 64), (5, 64, 1)),
        ((2, 1, 48, 64), (1, 1, 64, 40)),
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_stacks_run_in_one_launch(a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtype: str) -> None:
    cupy = driver.cupy()
    a, b = draw(*a_shape, dtype=dtype), draw(*b_shape, dtype=dtype, seed=1)
    if b_shape[-1] > 1:
        assert cupygemm.explain(a, b).kernel == "own"
    result, wanted = cupygemm.matmul(a, b), wide(a) @ wide(b)
    assert (result.shape, result.dtype, result.flags.c_contiguous) == (wanted.shape, a.dtype, True)
    assert close(result, wanted, 64)
    out = cupy.full(wanted.shape, float("nan"), dtype=a.dtype)
    assert cupygemm.matmul(a, b, out=out) is out
    assert close(out, wanted, 64)
    apart = cupy.full((*wanted.shape[:-2], 2, *wanted.shape[-2:]), float("nan"), dtype=a.dtype)
    view = apart[..., 1, :, :]
    cupygemm.matmul(a, b, out=view)
    assert close(view, wanted, 64)
    assert bool(cupy.isnan(apart[..., 0, :, :]).all())


def test_stacks_of_views() -> None:
    """Transposed matrices, every second matrix, and heads that lie between one another as attention has them."""
    a, b = draw(4, 64, 48), draw(8, 40, 64, seed=1)
    left, right = a.swapaxes(1, 2), b[::2].swapaxes(1, 2)
    assert cupygemm.explain(left, right).kernel == "own"
    assert close(cupygemm.matmul(left, right), wide(left) @ wide(right), 64)
    tokens = draw(32, 3, 8, 64, seed=2)
    queries, keys = (tokens[:, which].swapaxes(0, 1) for which in (0, 1))
    assert cupygemm.explain(queries, keys.swapaxes(1, 2)).kernel == "own"
    assert close(cupygemm.matmul(queries, keys.swapaxes(1, 2)), wide(queries) @ wide(keys.swapaxes(1, 2)), 64)


def test_stacks_and_epilogues_in_a_graph() -> None:
    cupy = driver.cupy()
    a, b, bias = draw(5, 48, 64), draw(5, 64, 40, seed=1), draw(40, seed=2)
    stream, out = cupy.cuda.Stream(non_blocking=True), cupy.empty((5, 48, 40), cupy.float16)
    with stream:
        stream.begin_capture()
        with pytest.raises(CaptureError, match="not loaded"):
            cupygemm.matmul(a[:, :17], b, bias=bias, activation="silu")
        stream.end_capture()
        cupygemm.matmul(a, b, out=out, bias=bias, activation="silu")
        stream.begin_capture()
        cupygemm.matmul(a, b, out=out, bias=bias, activation="silu")
        graph = stream.end_capture()
        a[...] = draw(5, 48, 64, seed=9)
        out.fill(float("nan"))
        graph.launch()
        stream.synchronize()
    total = wide(a) @ wide(b) + wide(bias)
    assert close(out, activated("silu", total, None), 64)
