"""Problem: parsing, arithmetic and clear refusals."""

from __future__ import annotations

import pytest

from cupygemm.errors import ProblemError
from cupygemm.problem import Problem


def test_parse() -> None:
    problem = Problem.parse("2048x1024X512", "bfloat16", layout="nt")
    assert Problem.parse("2048×1024×512", "bfloat16", layout="nt") == problem
    assert (problem.m, problem.n, problem.k) == (2048, 1024, 512)
    assert problem.out_dtype == "bfloat16"
    assert str(problem) == "2048x1024x512 bfloat16 nt"
    assert Problem.from_dict(problem.to_dict()) == problem


@pytest.mark.parametrize("shape", ["2048", "2048x2048", "axbxc", "1x2x3x4", "-1x2x3", "0x2x3", "1.5x2x3"])
def test_bad_shapes_say_what_is_legal(shape: str) -> None:
    with pytest.raises(ProblemError, match=r"MxNxK|at least 1"):
        Problem.parse(shape)


@pytest.mark.parametrize("field", ["a_dtype", "layout", "epilogue", "scales", "accumulate"])
def test_bad_choices_name_the_field(field: str) -> None:
    with pytest.raises(ProblemError, match=field):
        Problem(1, 1, 1, **{field: "float12"})  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [0, -1, True, 2.0])
def test_a_batch_is_a_size(batch: object) -> None:
    with pytest.raises(ProblemError, match="batch is"):
        Problem(1, 1, 1, batch)  # type: ignore[arg-type]


def test_what_is_unusual_is_said() -> None:
    problem = Problem(64, 32, 16, 5, out_dtype="float32", epilogue="bias_n+gelu")
    assert str(problem) == "5×64x32x16 float16→float32 nn bias_n+gelu"
    assert problem.matrix(64, 32) == (5, 64, 32)
    assert Problem(64, 32, 16).matrix(64, 32) == (64, 32)


def test_a_residual_is_read() -> None:
    plain, added = (Problem(2, 3, 4, 5, epilogue=epilogue) for epilogue in ("bias_n", "residual+relu"))
    assert added.compulsory_bytes - plain.compulsory_bytes == 5 * 2 * 3 * 2


def test_arithmetic() -> None:
    problem = Problem(2, 3, 4, batch=5, out_dtype="float32")
    assert problem.flops == 2 * 2 * 3 * 4 * 5
    assert problem.compulsory_bytes == 5 * (2 * 4 * 2 + 4 * 3 * 2 + 2 * 3 * 4)


@pytest.mark.parametrize("name", ["a_dtype", "b_dtype", "out_dtype"])
def test_an_unknown_dtype_is_told_which_are_built(name):
    built = "kernels are built for operands of float16 and bfloat16 and for results of float16, bfloat16, float32"
    with pytest.raises(ProblemError, match=f"{name} is 'float64': legal values are .*; {built}"):
        Problem(1, 1, 1, **{name: "float64"})
