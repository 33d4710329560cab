"""The plugin that runs CuPy's tests with `cupygemm.matmul` in its place, on tests made up here: CuPy, and no GPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.gpu import cupy_suite

pytestmark = pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not installed")

MADE_UP = """
import cupy
import pytest

def is_ours():
    return getattr(cupy.matmul, "__module__", "").startswith("cupygemm")

def test_of_anybody():
    assert callable(cupy.matmul)

@pytest.mark.parametrize("name", ["matmul"])
def test_of_theirs(name):
    assert not is_ours()

def test_of_ours():
    assert is_ours()
    assert "__matmul__" in vars(cupy.ndarray)

@pytest.fixture
def fails_afterwards():
    yield
    assert not is_ours()

def test_with_an_end(fails_afterwards):
    pass

def test_not_run():
    pytest.skip("nowhere")
"""


def test_what_is_lost_by_the_patch_is_told(tmp_path: Path) -> None:
    file = tmp_path / "checkout" / "test_made_up.py"
    file.parent.mkdir()
    file.write_text(MADE_UP)
    theirs, ours = cupy_suite.run(file, tmp_path), cupy_suite.run(file, tmp_path, "--patched")
    by_name = {test.partition("::")[2]: outcome for test, outcome in theirs["outcomes"].items()}
    assert by_name == {
        "test_of_anybody": "passed",
        "test_of_theirs[matmul]": "passed",
        "test_of_ours": "failed",
        "test_with_an_end": "passed",
        "test_not_run": "skipped",
    }
    lost = list(cupy_suite.lost(theirs["outcomes"], ours["outcomes"]))
    assert [each.partition("::")[2] for each in lost] == ["test_of_theirs[matmul]: failed", "test_with_an_end: failed"]
    assert list(cupy_suite.lost({"gone": "passed", "never": "failed"}, {})) == ["gone: not run"]
    file.write_text("no Python")
    with pytest.raises(AssertionError, match="SyntaxError"):
        cupy_suite.run(file, tmp_path)
