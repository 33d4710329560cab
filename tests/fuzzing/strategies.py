"""Hypothesis strategies of the fuzz's cases: mostly what own kernels run, and each now and then something else.

Every choice is made so that its plainest outcome is the first one: what fails is shrunk to few oddities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from cupygemm.epilogue import NONE, Epilogue
from cupygemm.measuring import verify
from tests.fuzzing.cases import REGIONS, Array, Call, Case, numpy_dtype_of
from tests.fuzzing.kernels import FAMILIES, PLAIN, Family
from tests.fuzzing.pools import LONGEST
from tests.fuzzing.storage import Storage, layout

Draw = Callable[[st.SearchStrategy[Any]], Any]

MOST_PRODUCTS = 2**32
"""m · n · k · batch: a hundredth of a second in float64."""
SIZES = st.one_of(
    st.integers(1, 40),
    st.integers(1, 300),
    st.integers(1, 600),
    st.sampled_from([64, 128, 256, 512, 1024, 1032, 2048, 2049, 4096]),
)
FEW = st.integers(2, 7)
LINE = 16
"""Bytes to which rows are aligned that TMA reads."""


def chance(draw: Draw, percent: int) -> bool:
    """True in so many of a hundred draws, and False in the plainest."""
    # Away from both ends, which Hypothesis draws more often than others.
    return 13 <= int(draw(st.integers(0, 99))) < 13 + percent


@st.composite
def cases(draw: Draw, families: Sequence[Family] = FAMILIES, longest: int = LONGEST) -> Case:
    """Cases of some families, and now and then of other dtypes.

    Args:
        longest: elements of the largest array.
    """
    family = draw(st.sampled_from(PLAIN if chance(draw, 45) else families))
    if chance(draw, 4):
        return _of_other_dtypes(draw, longest)
    epilogue = Epilogue.parse(family.epilogue)
    shapes = _shapes(draw, family, longest)
    a = _stored(draw, shapes[0], family.dtype)
    b = _stored(draw, shapes[1], family.dtype)
    case = Case(a, b, kind=draw(st.sampled_from(verify.DATA_KINDS)), seed=draw(st.integers(0, 2**30)))
    both = len(shapes[0]) == len(shapes[1]) > 1
    if both and chance(draw, 3) and math.prod(shapes[0][:-1]) * shapes[0][-2] < longest:
        case = _with(case, b=None)
    case = _with_terms(draw, case, epilogue, family.out_dtype)
    case = _with_out(draw, case, family)
    return _with(case, calls=_calls(draw, case))


def _with(case: Case, **changes: Any) -> Case:
    return Case(**{**{name: getattr(case, name) for name in case.__dataclass_fields__}, **changes})


def _shapes(draw: Draw, family: Family, longest: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    m, n, k = draw(SIZES), draw(SIZES), draw(SIZES)
    if not family.batched:
        before_a: tuple[int, ...] = ()
        before_b: tuple[int, ...] = ()
        if chance(draw, 4):
            before_a = (1,) * draw(st.integers(1, 2))
        elif family in PLAIN and chance(draw, 8):
            before_a = draw(st.sampled_from([(3,), (5,), (2, 3), (1, 4)]))
    else:
        before = (draw(FEW),) if not chance(draw, 25) else (draw(FEW), draw(st.integers(1, 4)))
        if chance(draw, 10):
            before = (draw(st.integers(8, 150)),)
        ones = (1,) * len(before)
        forms = [(before, before), ((), before), (ones, before), (before[-1:], before), (before, before[-1:])]
        before_a, before_b = forms[draw(st.integers(0, len(forms) - 1)) if chance(draw, 40) else 0]
    m, n, k = _fitting(m, n, k, math.prod(np.broadcast_shapes(before_a, before_b)), longest)
    if chance(draw, 1):
        m, n, k = ((0, n, k), (m, 0, k), (m, n, 0), (0, 0, 0))[draw(st.integers(0, 3))]
    rows: tuple[int, ...] = (m,)
    columns: tuple[int, ...] = (n,)
    if not before_a and chance(draw, 4):
        rows = ()
    if not before_b and chance(draw, 4):
        columns = ()
    return (*before_a, *rows, k), (*before_b, k, *columns)


def _fitting(m: int, n: int, k: int, batch: int, longest: int) -> tuple[int, int, int]:
    """The sizes, smaller where arrays or the time for them would be too large."""
    largest = max(8, longest // 4 // batch)
    while max(m * n, m * k, n * k) > largest or m * n * k * batch > MOST_PRODUCTS:
        m, n, k = (max(1, size // 2) if size == max(m, n, k) else size for size in (m, n, k))
    return m, n, k


def _stored(draw: Draw, shape: tuple[int, ...], dtype: str, turned: int = 50) -> Array:
    """An operand: mostly one that TMA can read, of which some are views.

    Args:
        turned: how many in a hundred are stored by columns.
    """
    item = numpy_dtype_of(dtype).itemsize
    line = max(1, LINE // item)
    order, steps = list(range(len(shape))), [1] * len(shape)
    if len(shape) > 1 and chance(draw, turned):
        order[-2:] = order[:-3:-1]
    if len(shape) > 2 and chance(draw, 15):
        # As heads lie: each row holds one of every matrix.
        order = [order[-2], *order[:-2], order[-1]]
    offset = line * draw(st.integers(0, 3)) if chance(draw, 20) else 0
    if len(shape) > 1 and chance(draw, 10):
        axis = draw(st.sampled_from(order[:-1]))
        # Rows that are one and the same, TMA does not read.
        steps[axis] = draw(st.sampled_from([2, 0])) if axis < len(shape) - 2 else 2
    gap = 0
    if chance(draw, 4):
        order, steps, gap, offset = _odd(draw, order, steps, line)
    elif len(shape) > 1:
        inner = order[-1]
        reach = abs(steps[inner]) * max(shape[inner] - 1, 0) + 1
        gap = -reach % line + (line * draw(st.integers(1, 4)) if chance(draw, 20) else 0)
    spread = draw(st.integers(0, 3)) if len(shape) > 2 and chance(draw, 15) else 0
    return Array(shape, dtype, Storage(tuple(order), tuple(steps), gap, spread, offset))


def _odd(draw: Draw, order: list[int], steps: list[int], line: int) -> tuple[list[int], list[int], int, int]:
    """What TMA reads seldom: rows that start anywhere, steps along them, axes backwards, any order."""
    gap = offset = 0
    match draw(st.integers(0, 4)):
        case 0:
            offset = draw(st.integers(1, line))
        case 1:
            gap = draw(st.integers(0, 2 * line))
        case 2:
            steps[draw(st.sampled_from(order))] = draw(st.sampled_from([-1, 2, 0]))
        case 3:
            order = list(draw(st.permutations(order)))
        case _:
            steps = [draw(st.sampled_from([1, -1, 2])) for _ in order]
            gap, offset = draw(st.integers(0, line)), draw(st.integers(0, line))
    return order, steps, gap, offset


def _with_terms(draw: Draw, case: Case, epilogue: Epilogue, out_dtype: str) -> Case:
    """The case with an epilogue's terms, and with what asks for the result's dtype."""
    changes: dict[str, Any] = {}
    if epilogue == Epilogue():
        if out_dtype != case.promoted_dtype:
            changes["dtype" if chance(draw, 50) else "out_dtype"] = out_dtype
        return _with(case, **changes)
    if out_dtype != case.promoted_dtype or chance(draw, 20):
        changes["out_dtype"] = out_dtype
    shape = case.shape
    if epilogue.bias != NONE:
        whole = {"n": shape[-1:], "m": (*shape[-2:-1], 1)}[epilogue.bias]
        if len(case.right.shape) == 1:
            whole = shape[-1:]
        if chance(draw, 4):
            whole = draw(st.sampled_from([shape, (1,) * len(shape), (1, *shape[1:])[: len(shape)], ()]))
        changes["bias"] = _term(draw, whole, out_dtype)
    if epilogue.residual:
        whole = shape
        if chance(draw, 4):
            whole = draw(st.sampled_from([shape[1:], (*(1,) * len(shape[:-1]), *shape[-1:]), ()]))
        changes["residual"] = _term(draw, whole, out_dtype, stored=True)
        changes["beta"] = draw(st.sampled_from([1.0, -0.75, 0.5]))
    if epilogue.activation != NONE:
        changes["activation"] = epilogue.activation
    factors = [0.5, -1.25, 2.0]
    changes["alpha"] = draw(st.sampled_from(factors if epilogue.scaled else [1.0, *factors]))
    return _with(case, **changes)


def _term(draw: Draw, shape: tuple[int, ...], dtype: str, stored: bool = False) -> Array:
    """A bias or a residual."""
    if chance(draw, 3):
        dtype = draw(st.sampled_from(["float32", "float16"]))
    if stored and chance(draw, 30):
        return _stored(draw, shape, dtype, turned=8)
    odd = Storage(offset=draw(st.sampled_from([2, 4, 8, 1, 3]))) if chance(draw, 8) else Storage()
    if shape and chance(draw, 2):
        odd = Storage(steps=(*(1,) * (len(shape) - 1), 2))
    return Array(shape, dtype, odd)


def _with_out(draw: Draw, case: Case, family: Family) -> Case:
    """The case with `out`, or without."""
    residual = case.residual
    fits = residual is not None and (residual.shape, residual.dtype) == (case.shape, case.natural_dtype)
    if residual is not None and fits and 0 not in residual.storage.steps and chance(draw, 35):
        return _with(case, out=residual, calls=(Call(out_on="residual"),))
    if not chance(draw, 60):
        return case
    dtype = case.natural_dtype
    if not case.is_fused and chance(draw, 6):
        dtype = {"float16": "float64", "bfloat16": "float32", "float32": "float64"}[dtype]
    shape = case.shape
    place = Array(shape, dtype, Storage())
    if shape and chance(draw, 40):
        place = _stored(draw, shape, dtype)
        # Elements of a result lie apart.
        steps = tuple(step or 1 for step in place.storage.steps)
        place = Array(shape, dtype, Storage(**{**vars(place.storage), "steps": steps}))
    return _with(case, out=place)


def _calls(draw: Draw, case: Case) -> tuple[Call, ...]:
    """Two or three calls: mostly the same again in other memory, now and then so that it must be decided anew."""
    on = case.calls[0].out_on
    first = Call(out_on=on)
    if case.out is not None and not on and chance(draw, 6):
        first = Call(out_on=_region(draw, case), out_shift=draw(st.sampled_from([0, 8, 16, 1])))
    calls = [first]
    for _ in range(1 + chance(draw, 30)):
        call = first
        if chance(draw, 10):
            shift = st.sampled_from([0, 8, 16, 24, 1, 4])
            call = Call(draw(shift), draw(shift), draw(shift) if case.out is not None and not on else 0, on)
            if case.out is not None and not on and chance(draw, 40):
                call = Call(out_on=_region(draw, case), out_shift=draw(shift))
        calls.append(call)
    return tuple(calls)


def _region(draw: Draw, case: Case) -> str:
    there = [name for name in REGIONS if getattr(case, name) is not None]
    return str(draw(st.sampled_from(there)))


OTHERS = (
    ("float32", "float32"),
    ("float64", "float64"),
    ("int32", "int32"),
    ("int8", "int8"),
    ("complex64", "complex64"),
    ("complex128", "complex128"),
    ("float16", "float32"),
    ("float32", "float64"),
    ("bfloat16", "float32"),
)


def _of_other_dtypes(draw: Draw, longest: int) -> Case:
    """What is left to CuPy by its dtypes."""
    left, right = draw(st.sampled_from(OTHERS))
    family = Family(NONE, left, left, chance(draw, 30))
    shapes = _shapes(draw, family, min(longest, 2**19))
    case = Case(_stored(draw, shapes[0], left), _stored(draw, shapes[1], right), seed=draw(st.integers(0, 2**30)))
    if left in ("float32", "float64") and chance(draw, 30):
        case = _with(case, bias=Array(case.shape[-1:], case.promoted_dtype, Storage()), activation="relu", alpha=0.5)
    if chance(draw, 50):
        case = _with(case, out=Array(case.shape, case.natural_dtype, Storage()))
    return _with(case, calls=_calls(draw, case))


def elements(case: Case) -> int:
    """How large the largest array of a case is, gaps included."""
    arrays = (case.a, case.b, case.out, case.bias, case.residual)
    return max(layout(array.shape, array.storage).extent for array in arrays if array is not None)
