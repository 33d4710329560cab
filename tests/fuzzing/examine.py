"""Runs a case of the fuzz and compares it: values, memory around `out`, operands, what is returned, and what ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import cupygemm
from cupygemm.kernels import driver
from tests.fuzzing.arena import Arena, library
from tests.fuzzing.cases import Call, Case, numpy_dtype_of
from tests.fuzzing.pools import Pools
from tests.fuzzing.reference import Expected, expected


class Failure(AssertionError):
    """A case that `matmul` does not answer as it must.

    Attributes:
        case: which.
    """

    def __init__(self, case: Case, reason: str) -> None:
        super().__init__(f"{reason}\n{case}")
        self.case = case
        self.reason = reason


@dataclass(frozen=True)
class Outcome:
    """What ran a case.

    Attributes:
        own, cublas: calls that an own kernel, or CuPy, answered.
        refused: calls that CuPy answers with an error of its own, and so `matmul` does.
        wrong_in_cupy: calls that CuPy, asked by itself for the same operands, answers wrong as well.
    """

    own: int = 0
    cublas: int = 0
    refused: int = 0
    wrong_in_cupy: int = 0

    @property
    def is_own(self) -> bool:
        """Whether own kernels answered all calls."""
        return self.own > 0 and not (self.cublas or self.refused or self.wrong_in_cupy)


class _Answer(NamedTuple):
    """A call that was made, and what there is to say of it once the GPU has ended."""

    kernel: str
    arena: Arena
    values: dict[str, Any]
    verdict: Any


class Examiner:
    """Runs cases on one device, with a pool of values."""

    def __init__(self, pools: Pools, empty: Callable[..., Any]) -> None:
        """Nothing is run yet.

        Args:
            empty: allocates device memory, as `cupy.empty` does.
        """
        self._pools = pools
        self._empty = empty

    def __call__(self, case: Case) -> Outcome:
        """Makes all calls of a case, and compares.

        Raises:
            Failure: one is not answered as it must be.
        """
        answers = [self._make(case, call, index) for index, call in enumerate(case.calls)]
        made = {index: answer for index, answer in enumerate(answers) if answer is not None}
        wrong = 0
        for index, found in zip(made, _on_host([answer.verdict for answer in made.values()]), strict=True):
            reason, answer = _finding(found), made[index]
            if reason is None:
                continue
            if answer.kernel == "own" or not self._cupy_is_wrong(case, answer):
                raise Failure(case, f"call {index}, answered by {answer.kernel}: {reason}")
            wrong += 1
        own = sum(answer.kernel == "own" for answer in made.values())
        return Outcome(own, len(made) - own - wrong, len(answers) - len(made), wrong)

    def _make(self, case: Case, call: Call, index: int) -> _Answer | None:
        """Makes a call; None where CuPy refuses it."""
        values = {
            name: self._pools.cut(array, case.kind, case.seed * 97 + 5 * index + place)
            for place, name in enumerate(("a", "b", "bias", "residual"))
            if (array := getattr(case, name)) is not None
        }
        arena = Arena(case, call, values, self._empty)
        views = arena.views
        operands, out, options = (views["a"], views["b"]), views.get("out"), _options(case, views)
        kernel = ""
        with _counted_fallbacks() as fallbacks:
            try:
                kernel = cupygemm.explain(*operands, out, **options).kernel
                result = cupygemm.matmul(*operands, out, **options)
            except Exception as error:
                if kernel == "own" or not _cupy_refuses(*operands, error):
                    raise Failure(case, f"call {index}: {type(error).__name__}: {error}") from error
                return None
        if kernel == "own" and fallbacks:
            raise Failure(case, f"call {index}: `explain` says own, and CuPy ran")
        if out is not None and result is not out:
            raise Failure(case, f"call {index} returns something else than out")
        if result.shape != case.shape or result.dtype != numpy_dtype_of(case.result_dtype):
            wanted = f"{case.result_dtype}{list(case.shape)}"
            raise Failure(case, f"call {index} returns {result.dtype.name}{list(result.shape)}, not {wanted}")
        right = expected(case, values, kernel == "own")
        return _Answer(kernel, arena, values, _verdict(result, right, arena.strayed(out)))

    def _cupy_is_wrong(self, case: Case, answer: _Answer) -> bool:
        """Whether CuPy's product of the same operands, into a new array, is off too."""
        if case.is_fused or case.dtype is not None:
            return False
        views = answer.arena.views
        if case.out is not None and (case.out.dtype != case.natural_dtype or _spoilt(answer)):
            return False
        right = expected(case, answer.values, own=False)
        nothing = library(views["a"]).zeros((), np.int64)
        verdict = _verdict(driver.cupy().matmul(views["a"], views["b"]), right, nothing)
        return _finding(_on_host([verdict])[0]) is not None


def _spoilt(answer: _Answer) -> bool:
    """Whether operands are no longer what they were, since `out` lies on them."""
    return any(
        not bool((answer.arena.views[name] == answer.values[name]).all())
        for name in ("a", "b")
        if name in answer.values
    )


def on_gpu() -> Examiner:
    """One for the current device."""
    cupy = driver.cupy()

    def place(values: Any) -> Any:
        # CuPy copies no arrays of dtypes that NumPy does not have itself.
        return (
            cupy.asarray(values.view(np.uint16)).view(values.dtype)
            if values.dtype.kind == "V"
            else cupy.asarray(values)
        )

    return Examiner(Pools(place), cupy.empty)


def _options(case: Case, views: dict[str, Any]) -> dict[str, Any]:
    """The keywords of a call."""
    options: dict[str, Any] = {name: views[name] for name in ("bias", "residual") if name in views}
    if case.activation is not None:
        options["activation"] = case.activation
    for name in ("alpha", "beta"):
        if getattr(case, name) != 1.0:
            options[name] = getattr(case, name)
    for name in ("out_dtype", "dtype"):
        if getattr(case, name) is not None:
            options[name] = numpy_dtype_of(getattr(case, name))
    return options


@contextmanager
def _counted_fallbacks() -> Iterator[list[None]]:
    """Gives a list that grows with each call of CuPy's own matmul."""
    cupy: Any = driver.cupy()
    calls: list[None] = []
    theirs = cupy.matmul

    def counting(*arguments: Any, **options: Any) -> Any:
        calls.append(None)
        return theirs(*arguments, **options)

    cupy.matmul = counting
    try:
        yield calls
    finally:
        cupy.matmul = theirs


def _cupy_refuses(a: Any, b: Any, error: Exception) -> bool:
    """Whether CuPy has the same error for these operands."""
    try:
        driver.cupy().matmul(a, b)
    except Exception as theirs:
        return type(theirs) is type(error)
    return False


def _verdict(result: Any, right: Expected, strayed: Any) -> Any:
    """Elements that are out of bounds, whether the norm of the difference is, and whether memory around is changed."""
    xp = library(result)
    difference = abs(result.astype(right.product.dtype) - right.product)
    # NaN is no less than anything, and so is counted.
    outside = difference.size - (difference <= right.bound).sum()
    excess = outside * 0
    if right.norm is not None:
        excess = 1 - (xp.sqrt((difference * difference).sum()) <= right.norm).astype(np.int64)
    return xp.stack([xp.asarray(each, np.int64) for each in (outside, excess, strayed)])


def _finding(verdict: Any) -> str | None:
    outside, excess, strayed = (int(each) for each in verdict)
    if strayed:
        return "memory around out, or an operand, was written to"
    if outside:
        return f"{outside} elements are out of bounds"
    return "the norm of the difference is out of bounds" if excess else None


def _on_host(verdicts: list[Any]) -> Any:
    """All verdicts with one wait for the GPU."""
    if not verdicts:
        return []
    stacked = library(verdicts[0]).stack(verdicts)
    return np.asarray(stacked) if isinstance(stacked, np.ndarray) else stacked.get()
