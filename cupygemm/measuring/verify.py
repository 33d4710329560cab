"""Whether a product is right: two bounds against float64 that an accumulator of less than fp32 cannot meet.

Everything here works on NumPy and on CuPy arrays alike. Two bounds, because each sees what the other cannot: the
relative Frobenius error sees an error spread thinly over all elements, as a 16-bit accumulator leaves it; the element
bound sees one wrong element among millions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Self

import numpy as np

from cupygemm.config import TMA_ALIGNMENT
from cupygemm.dtypes import DTYPES
from cupygemm.epilogue import NONE, Epilogue
from cupygemm.kernels.operands import Operands
from cupygemm.problem import Problem

Array = Any
"""A NumPy or CuPy array."""

ZERO_MEAN = "zero_mean"
POSITIVE_MEAN = "positive_mean"
DATA_KINDS = (ZERO_MEAN, POSITIVE_MEAN)
"""Operands to verify with: standard normal; uniform in [0, 1), where a short accumulator swallows small addends."""

GUARD_BYTES = 65536
"""Poisoned memory before and behind a guarded output."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name in `DTYPES`."""
    if DTYPES[name].in_numpy:
        return np.dtype(name)
    # Loaded here: only the extras that bring CuPy, which works without it, bring ml_dtypes.
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


def draw_operands(rng: Any, problem: Problem, kind: str) -> Operands:
    """Random operands of a problem.

    Args:
        rng: a NumPy or CuPy Generator.
        problem: gives shapes, dtypes and layout.
        kind: one of `DATA_KINDS`.

    Returns:
        what a launch takes, what the epilogue reads among it. An operand with layout `t` is a transposed view. Stored
        rows of `a` and `b` are a multiple of 16 bytes apart, as TMA needs them, with NaN in what that adds to them;
        `out` is unwritten, without gaps.
    """
    scale = _positive_scale(problem.k) if kind == POSITIVE_MEAN else 1.0
    a = _draw(rng, problem.matrix(problem.m, problem.k), problem.layout[0], kind, problem.a_dtype, scale)
    b = _draw(rng, problem.matrix(problem.k, problem.n), problem.layout[1], kind, problem.b_dtype, 1.0)
    shape = problem.matrix(problem.m, problem.n)
    out = np.empty_like(a, numpy_dtype(problem.out_dtype), order="C", shape=shape)
    epilogue = Epilogue.parse(problem.epilogue)
    if epilogue == Epilogue():
        return Operands(a, b, out)
    # Alpha brings the product to the size of the other terms, so that each counts, and to where activations bend.
    size = math.sqrt(problem.k) if kind == ZERO_MEAN else problem.k / 4 * scale
    alpha = 2.0 ** -round(math.log2(size))
    length = {NONE: 0, "n": problem.n, "m": problem.m}[epilogue.bias]
    bias = _values(rng, (length,), kind, problem.out_dtype) if length else None
    residual = _values(rng, shape, kind, problem.out_dtype) if epilogue.residual else None
    return Operands(a, b, out, bias, residual, alpha, beta=-0.75 if epilogue.residual else 1.0)


def _draw(rng: Any, shape: tuple[int, ...], layout: str, kind: str, dtype: str, scale: float) -> Array:
    *stack, rows, columns = shape if layout == "n" else (*shape[:-2], shape[-1], shape[-2])
    element = numpy_dtype(dtype)
    padded = -(-columns * element.itemsize // TMA_ALIGNMENT) * TMA_ALIGNMENT // element.itemsize
    values = _values(rng, (*stack, rows, padded), kind, "float32", scale)
    values[..., columns:] = np.nan
    stored = values.astype(element)[..., :columns]
    return stored if layout == "n" else stored.swapaxes(-1, -2)


def _values(rng: Any, shape: tuple[int, ...], kind: str, dtype: str, scale: float = 1.0) -> Array:
    draw = rng.standard_normal if kind == ZERO_MEAN else rng.random
    values = draw(shape, dtype=np.float32) * np.float32(scale)
    return values if dtype == "float32" else values.astype(numpy_dtype(dtype))


def _positive_scale(k: int) -> float:
    """The power of two that keeps k / 4, the mean of a positive-mean product, within fp16 (65504)."""
    return 2.0 ** -max(0, math.ceil(math.log2(k / 65536)))


def element_tolerance(k: int, mma_k: int) -> float:
    """Largest error of an fp32-accumulated element, relative to the same element of |A||B|.

    The tensor core truncates each addend at 24 bits of the largest: at most 2^-24 for each of k products and for the
    running sum once every `mma_k`; twice that is allowed.
    """
    return (k + mma_k) * 2.0**-23


def frobenius_tolerance(k: int) -> float:
    """Relative Frobenius error that fp32 accumulation may add to the rounding of the result.

    Truncation errs in one direction, so errors add up over the k / 16 steps: about 17 addends of half an ulp a step
    on a sum that grows to its final size, k · 2^-26. Twice that is allowed, and a floor for short k.
    """
    return (k / 4 + 32) * 2.0**-23


@dataclass(frozen=True)
class Reference:
    """The right answer for one launch, and how far from it a right kernel may be.

    Attributes:
        product: float64 [m, n], or [batch, m, n]: the result, with all that the epilogue adds.
        element_bound: float32, likewise, largest |out - product|.
        norm: Frobenius norm of the product.
        frobenius_bound: largest relative Frobenius error. By the triangle inequality: what rounding this very product
            to the result's dtype costs, plus twice what fp32 accumulation may have added before.
    """

    product: Array
    element_bound: Array
    norm: float
    frobenius_bound: float

    @classmethod
    def of(cls, operands: Operands, problem: Problem) -> Self:
        """Computes the product in float64, on the device where the operands are; `out` is not looked at."""
        a, b = operands.a.astype(np.float64), operands.b.astype(np.float64)
        product = a @ b
        magnitude = abs(a) @ abs(b)
        accumulated = element_tolerance(problem.k, DTYPES[problem.a_dtype].mma_k) * magnitude
        if problem.epilogue != NONE:
            product, magnitude, accumulated = _with_epilogue(operands, problem, product, magnitude, accumulated)
        out_dtype = DTYPES[problem.out_dtype]
        bound = out_dtype.unit_roundoff * abs(product) + accumulated + out_dtype.tiny
        norm = _norm(product)
        rounded = _norm(product.astype(numpy_dtype(problem.out_dtype)).astype(np.float64) - product)
        # Where a product cancels, errors are relative to what was added up, which is never less than this.
        added = max(norm, _norm(magnitude) / math.sqrt(problem.k))
        allowed = rounded + 2 * frobenius_tolerance(problem.k) * added
        return cls(product, bound.astype(np.float32), norm, _ratio(allowed, norm))


SLOPES = {NONE: 1.0, "relu": 1.0, "gelu": 1.13, "gelu_tanh": 1.13, "silu": 1.1}
"""How much an activation magnifies an error of its input, at most."""
EPILOGUE_TOLERANCE = 2.0**-19
"""Of what an epilogue adds up, and of an activation's input: a few roundings in fp32, and approximations of exp and erf
that are right to 2^-20 of it."""


def _with_epilogue(
    operands: Operands, problem: Problem, product: Array, magnitude: Array, accumulated: Array
) -> tuple[Array, Array, Array]:
    """The result that an epilogue makes of a product, how much is added up for it, and what it may be off in fp32."""
    epilogue = Epilogue.parse(problem.epilogue)
    result, added = operands.alpha * product, abs(operands.alpha) * magnitude
    terms = []
    if operands.bias is not None:
        bias = operands.bias.astype(np.float64)
        terms.append(bias if epilogue.bias == "n" else bias[:, None])
    if operands.residual is not None:
        terms.append(operands.beta * operands.residual.astype(np.float64))
    for term in terms:
        result, added = result + term, added + abs(term)
    slope = SLOPES[epilogue.activation]
    off = slope * (abs(operands.alpha) * accumulated + EPILOGUE_TOLERANCE * added)
    return activated(epilogue.activation, result, _erf(result)), slope * added, off


def activated(name: str, values: Array, erf: Callable[[Array], Array]) -> Array:
    """An activation in the dtype of `values`.

    Args:
        name: of `epilogue.ACTIVATIONS`.
        erf: the error function of the library that the array is of.
    """
    if name == "relu":
        return np.maximum(values, 0)
    if name == "gelu":
        return 0.5 * values * (1.0 + erf(values / math.sqrt(2.0)))
    if name == "gelu_tanh":
        return _times_sigmoid(values, 2.0 * math.sqrt(2.0 / math.pi) * (values + 0.044715 * values * values * values))
    if name == "silu":
        return _times_sigmoid(values, values)
    return values


def _times_sigmoid(values: Array, argument: Array) -> Array:
    # 0.5 + tanh / 2 does not overflow, which 1 / (1 + exp) does. NumPy's ufuncs take CuPy arrays too.
    return values * (0.5 + 0.5 * np.tanh(0.5 * argument))


def _erf(array: Array) -> Any:
    """The error function for arrays of this library."""
    if isinstance(array, np.ndarray | np.generic):
        return np.vectorize(math.erf, otypes=[np.float64])
    # Loaded here, and from where the array itself is: this module works without CuPy too.
    return import_module("cupyx.scipy.special").erf


@dataclass(frozen=True)
class Verdict:
    """What `check` found.

    Attributes:
        error: relative Frobenius error; NaN where an element is NaN or was never written.
        frobenius_bound: what `error` may be.
        worst_element: largest |out - product| over its bound: at most 1 is right.
        guards_intact: nothing was written before or behind the output.
    """

    error: float
    frobenius_bound: float
    worst_element: float
    guards_intact: bool = True

    @property
    def ok(self) -> bool:
        """Whether the result is right. NaN compares false and so never passes."""
        return self.error <= self.frobenius_bound and self.worst_element <= 1.0 and self.guards_intact

    @property
    def detail(self) -> str:
        """One line that says what is wrong, empty when nothing is."""
        if not self.guards_intact:
            return "wrote outside the output"
        if not math.isfinite(self.error):
            return "an element is not finite or was not written"
        if not self.error <= self.frobenius_bound:
            return f"relative Frobenius error {self.error:.2e}, allowed {self.frobenius_bound:.2e}"
        if not self.worst_element <= 1.0:
            return f"an element is wrong by {self.worst_element:.1f} times what is allowed"
        return ""


def check(out: Array, reference: Reference) -> Verdict:
    """Compares a result with its reference.

    Args:
        out: in the problem's shape and out_dtype, on the reference's device.
    """
    difference = out.astype(np.float64) - reference.product
    worst = float((abs(difference) / reference.element_bound).max())
    return Verdict(_ratio(_norm(difference), reference.norm), reference.frobenius_bound, worst)


def _norm(array: Array) -> float:
    return math.sqrt(float((array * array).sum()))


def _ratio(error: float, norm: float) -> float:
    if norm == 0.0:
        return 0.0 if error == 0.0 else math.inf
    return error / norm


class GuardedOutput:
    """An output inside a larger buffer, all of it poisoned: every byte 0xFF, which is NaN in every float dtype.

    Attributes:
        array: of the shape, contiguous, aligned as a fresh allocation would be.
    """

    def __init__(self, xp: ModuleType, shape: tuple[int, ...], dtype: str) -> None:
        """Allocates and poisons.

        Args:
            xp: numpy or cupy.
            shape: of the output.
            dtype: its name.
        """
        element = numpy_dtype(dtype)
        self._size = math.prod(shape) * element.itemsize
        self._buffer = xp.empty(self._size + 2 * GUARD_BYTES, dtype=np.uint8)
        self.array = self._buffer[GUARD_BYTES : GUARD_BYTES + self._size].view(element).reshape(shape)
        self.poison()

    def poison(self) -> None:
        """Makes every element and both guards NaN."""
        self._buffer.fill(0xFF)

    def intact(self) -> bool:
        """Whether both guards still hold their poison."""
        before, behind = self._buffer[:GUARD_BYTES], self._buffer[GUARD_BYTES + self._size :]
        return bool((before == 0xFF).all()) and bool((behind == 0xFF).all())
