"""CuPy's own tests of `matmul`, with `cupygemm.matmul` in its place: what passes without us must pass with us.

They are not part of this repository: CUPYGEMM_CUPY_REPOSITORY names a checkout of CuPy's, of the version installed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.gpu import cupy_suite

VARIABLE = "CUPYGEMM_CUPY_REPOSITORY"
FILE = Path("tests/cupy_tests/math_tests/test_matmul.py")


@pytest.mark.gpu
def test_cupys_own_tests_pass_with_ours_in_their_place(tmp_path: Path) -> None:
    checkout = os.environ.get(VARIABLE)
    if checkout is None:
        pytest.skip(f"{VARIABLE} names no checkout of CuPy's repository")
    file = Path(checkout).absolute() / FILE
    assert file.is_file(), f"{VARIABLE}={checkout}: there is no {FILE}"
    theirs = cupy_suite.run(file, tmp_path)
    ours = cupy_suite.run(file, tmp_path, "--patched")
    passed = [test for test, outcome in theirs["outcomes"].items() if outcome == "passed"]
    assert len(passed) > 100
    assert list(cupy_suite.lost(theirs["outcomes"], ours["outcomes"])) == []
    assert theirs["problems"] == []
    assert len(ours["problems"]) >= 3, "own kernels have run"
