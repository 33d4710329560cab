"""The examples of docs/drop-in.md run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import cupygemm
from cupygemm.kernels import driver
from cupygemm.problem import Problem
from tests.gpu.everything import everything

pytestmark = pytest.mark.gpu

PAGE = Path(__file__).parent.parent.parent / "docs" / "drop-in.md"


def run(heading: str) -> dict[str, Any]:
    """The names that the example under a heading leaves."""
    section = PAGE.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    return names


@pytest.mark.filterwarnings("ignore:ExternalStream is deprecated")  # its successor is not in CuPy 13
def test_the_example_of_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch is installed without CUDA")
    with cupygemm.use(everything()):
        names = run("PyTorch, through DLPack")
        a, b, c = (names[name] for name in "abc")
        operands = [driver.cupy().from_dlpack(each) for each in (a, b)]
        assert cupygemm.explain(*operands).problem == Problem(256, 128, 512)
        assert cupygemm.explain(*operands).kernel == "own"
    wanted = a.double() @ b.double()
    assert float((c.double() - wanted).norm() / wanted.norm()) < 1e-3


def test_the_example_of_patch() -> None:
    with cupygemm.use(everything()):
        c = run("`cupygemm.patch()`")["c"]
    assert bool((c == 4096).all())
