"""Operands without gaps, as `matmul` reads them: against what it makes of arrays."""

from __future__ import annotations

import pytest

import cupygemm
from cupygemm.commands.explain_run import explain_problem
from cupygemm.problem import Problem
from cupygemm.views.gapless import gapless
from tests.fake_gpu import FakeGpu
from tests.fake_products import bundle_of, fresh_gpu, operands


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return fresh_gpu(monkeypatch)


@pytest.mark.parametrize(
    ("problem", "layout", "words"),
    [
        (Problem(64, 64, 64), "nn", None),
        (Problem(64, 64, 60), "nn", "TMA cannot read a in place (rows are 120 bytes apart"),
        (Problem(64, 60, 64), "nn", "TMA cannot read b in place (rows are 120 bytes apart"),
        (Problem(60, 64, 64, layout="tn"), "tn", "TMA cannot read a in place"),
        (Problem(60, 64, 64, layout="nt"), "nt", None),
        (Problem(64, 1, 64), "nt", None),
        (Problem(1, 64, 60), "nn", None),
        (Problem(1, 64, 64, 3), "nn", None),
        (
            Problem(1, 64, 60, 3),
            "nn",
            "TMA cannot read a in place (matrices are 120 bytes apart",
        ),
    ],
)
def test_reading(problem: Problem, layout: str, words: str | None) -> None:
    read = gapless(problem)
    assert not isinstance(read, str)
    assert read.problem.layout == layout
    assert (read.unread is None) if words is None else (words in str(read.unread))
    copied = [name for name, copy in zip("ab", read.copies, strict=True) if copy is not None]
    assert copied == ([] if words is None else [words[len("TMA cannot copy ")]])


@pytest.mark.parametrize("pays", [True, False])
def test_the_command_says_what_matmul_does(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, pays: bool) -> None:
    for module in ("cupygemm.commands.explain_run", "cupygemm.runtime.product"):
        monkeypatch.setattr(f"{module}.pays", lambda *told: pays)
    problems = [Problem(24, 40, 16), Problem(24, 39, 17), Problem(24, 1, 16), Problem(23, 40, 16, layout="tn")]
    asked = [read.problem for read in map(gapless, problems) if not isinstance(read, str)]
    with cupygemm.use(bundle_of(*asked)):
        dispatcher = cupygemm.runtime.api.dispatcher()  # type: ignore[attr-defined]
        monkeypatch.setattr("cupygemm.commands.explain_run.Dispatcher", lambda only: dispatcher)
        for problem in problems:
            a, b = operands(gpu, problem)
            choice, answer = cupygemm.explain(a, b), explain_problem(problem, None).choice
            assert (answer.kernel, answer.config) == (choice.kernel, choice.config), problem
