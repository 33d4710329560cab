"""What `matmul` makes of operands that lie without gaps, where there are no arrays."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

from cupygemm.dtypes import DTYPES
from cupygemm.kernels.placement import misaligned_reason
from cupygemm.problem import Problem
from cupygemm.views.copies import Copy, copy_of, needs_packing
from cupygemm.views.stacks import Stack


class Gapless(NamedTuple):
    """A product of operands without gaps.

    Attributes:
        problem: as `matmul` asks for it: operands are read by rows or by columns, as TMA can, or copied first.
        a, b: the operands, as far as shapes and strides go.
        copies: of a and b; None for one that is read where it lies.
        unread: why TMA cannot read one of them; None where it reads both.
    """

    problem: Problem
    a: Stack
    b: Stack
    copies: tuple[Copy | None, Copy | None]
    unread: str | None


def gapless(problem: Problem) -> Gapless | str:
    """What becomes of a problem whose operands are stored as its layout says, or why own kernels cannot read them."""
    a = _operand(problem, problem.m, problem.k, problem.layout[0])
    b = _operand(problem, problem.k, problem.n, problem.layout[1])
    letters, copies, unread = "", [], None
    for name, each in (("a", a), ("b", b)):
        reason = needs_packing(each)
        copy = None if reason is None else copy_of(each)
        if reason is not None:
            unread = unread or f"TMA cannot read {name} in place ({reason})"
        if isinstance(copy, str):
            return f"{unread}, and {name} cannot be copied for it: {copy}"
        copies.append(copy)
        by_columns = misaligned_reason(each, False) is not None if copy is None else copy.transposed
        letters += "nt"[by_columns]
    return Gapless(replace(problem, layout=letters), a, b, (copies[0], copies[1]), unread)


def _operand(problem: Problem, rows: int, columns: int, letter: str) -> Stack:
    dtype = DTYPES[problem.a_dtype]
    by_rows = letter == "n"
    row, column = (columns * dtype.bytes, dtype.bytes) if by_rows else (dtype.bytes, rows * dtype.bytes)
    shape: tuple[int, ...] = (rows, columns)
    strides: tuple[int, ...] = (row, column)
    if problem.batch > 1:
        shape, strides = (problem.batch, *shape), (rows * columns * dtype.bytes, *strides)
    kind: Any = SimpleNamespace(name=problem.a_dtype, itemsize=dtype.bytes)
    return Stack(shape, strides, kind, SimpleNamespace(ptr=0), None)
