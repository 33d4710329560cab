"""The named suites: what they hold, and how targets of a command name them."""

from __future__ import annotations

from functools import partial

import pytest

from cupygemm.errors import ProblemError
from cupygemm.measuring import suites
from cupygemm.measuring.suites import SUITES, select
from cupygemm.problem import LAYOUTS, Problem


def shapes(name: str) -> list[str]:
    return [problem.shape for problem in SUITES[name].problems]


def test_the_names_are_those_that_results_are_filed_under() -> None:
    promised = {"headline", "squares", "short_k", "ragged", "layouts", "small", "splitk", "skinny", "grid_sample"}
    assert set(SUITES) == promised | {"tokens", "batched", "fused", "recorded"}


@pytest.mark.parametrize("name", SUITES)
def test_no_problem_stands_twice(name: str) -> None:
    problems = SUITES[name].problems
    assert len(set(problems)) == len(problems) > 1


@pytest.mark.parametrize("name", ["headline", "squares"])
def test_large_work_is_in_both_16_bit_dtypes(name: str) -> None:
    by_dtype = {
        dtype: [problem.shape for problem in SUITES[name].problems if problem.a_dtype == dtype]
        for dtype in ("float16", "bfloat16")
    }
    assert by_dtype["float16"] == by_dtype["bfloat16"] != []
    assert all(problem.out_dtype == problem.a_dtype == problem.b_dtype for problem in SUITES[name].problems)


def test_layouts_are_all_four_of_each_shape() -> None:
    found = {(problem.shape, problem.layout) for problem in SUITES["layouts"].problems}
    assert found == {(shape, layout) for shape in ("2048x2048x4096", "4096x4096x4096") for layout in LAYOUTS}


def test_stacks_and_epilogues_have_suites_of_their_own() -> None:
    for name, suite in SUITES.items():
        assert {problem.batch > 1 for problem in suite.problems} == {name == "batched"}
        assert {problem.epilogue != "none" for problem in suite.problems} == {name == "fused"}
    assert {problem.batch for problem in SUITES["batched"].problems} == {4, 16, 64}
    squares = [problem for problem in SUITES["batched"].problems if problem.shape == "1024x1024x1024"]
    assert sorted((each.batch, each.layout) for each in squares if each.a_dtype == "float16") == [
        (batch, layout) for batch in (4, 16, 64) for layout in ("nn", "nt")
    ]


def test_a_list_of_sizes_is_every_combination() -> None:
    for m in (1, 4, 8):
        assert {f"{m}x4096x4096", f"{m}x4096x14336"} <= set(shapes("skinny"))


def test_the_grid_sample_is_drawn_from_the_grid_by_its_seed() -> None:
    suite = SUITES["grid_sample"]
    assert suites.GRID == (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    assert len(suite.problems) == 100
    assert {size for problem in suite.problems for size in (problem.m, problem.n, problem.k)} == set(suites.GRID)
    assert suite.seed is not None
    assert suites.grid_sample(suite.seed, 100) == suite.problems
    assert suites.grid_sample(suite.seed + 1, 100) != suite.problems
    # Recorded results are of these: another Python, or a change of the drawing, must not make them others.
    assert shapes("grid_sample")[:4] == ["128x1024x64", "2048x64x4096", "8192x4096x8192", "1024x8192x8192"]


def test_a_suite_is_named_alone_and_says_its_seed() -> None:
    assert select(["small"]) == (SUITES["small"].problems, {"suite": "small"})
    assert select(["grid_sample"])[1] == {"suite": "grid_sample", "seed": suites.GRID_SEED}
    with pytest.raises(ProblemError, match="small is a suite"):
        select(["small", "64x64x64"])


def test_shapes_have_the_dtypes_and_the_layout_given_and_count_once() -> None:
    problem_of = partial(Problem.parse, dtype="bfloat16", out_dtype="float32", layout="tn")
    problems, facts = select(["64x32x16", "64×32×16"], problem_of)
    wanted = Problem(64, 32, 16, a_dtype="bfloat16", b_dtype="bfloat16", out_dtype="float32", layout="tn")
    assert (problems, facts) == ((wanted,), {})
    assert select([]) == ((), {})


def test_an_unknown_name_is_told_the_suites() -> None:
    with pytest.raises(ProblemError, match=r"no suite 'smal'.*grid_sample"):
        select(["smal"])
    with pytest.raises(ProblemError, match="MxNxK"):
        select(["64x64"])


def test_the_listing_of_a_suite_has_a_line_a_problem() -> None:
    assert suites.listing(["recorded"]) == [str(problem) for problem in suites.SUITES["recorded"].problems]
    for target in ("recordedd", "8x8x8"):
        with pytest.raises(ProblemError, match=r"suite.*: they are headline, squares"):
            suites.listing([target])


def test_the_listing_has_a_line_a_suite() -> None:
    assert [line.split()[:2] for line in suites.listing()] == [
        [name, str(len(suite.problems))] for name, suite in SUITES.items()
    ]
