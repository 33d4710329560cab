"""What `use`, `matmul` and `explain` say of themselves and of what they are given."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import cupygemm
from cupygemm.errors import BundleError, LaunchError
from cupygemm.kernels import driver
from tests.fake_products import PROBLEM, bundle_of


def test_use_says_what_is_in_force(tmp_path):
    path = tmp_path / "tuned.yaml"
    bundle_of(PROBLEM).save(path)
    with cupygemm.use(str(path)) as used:
        assert repr(used) == f"<cupygemm.use: {path}, 1 entry for NVIDIA H200, in force>"
    assert repr(used).endswith("no longer in force>")
    with cupygemm.use(bundle_of(PROBLEM)) as used:
        assert repr(used) == "<cupygemm.use: the bundle given, 1 entry for NVIDIA H200, in force>"


@pytest.mark.parametrize(("given", "kind"), [(3, "int"), (None, "NoneType"), (np.ones(1), "numpy.ndarray")])
def test_use_names_what_is_no_bundle(given, kind):
    with pytest.raises(BundleError, match=f"not {kind}$"):
        cupygemm.use(given)


@pytest.mark.parametrize(
    ("has_driver", "why"), [(True, "CuPy is not installed"), (False, "no NVIDIA driver is loaded")]
)
@pytest.mark.parametrize("call", [cupygemm.matmul, cupygemm.explain])
def test_without_cupy_the_operands_are_named(monkeypatch, tmp_path, call, has_driver, why):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(driver, "import_module", missing)
    monkeypatch.setattr(driver, "cupy", driver.cupy.__wrapped__)
    with pytest.raises(
        LaunchError, match=r"CuPy is (not )?installed: .*; the operands are numpy\.ndarray and list, CuPy"
    ) as caught:
        call(np.ones((2, 2)), [[1.0]])
    assert ("`cupygemm explain MxNxK` answers" in str(caught.value)) == (call is cupygemm.explain)


def test_plan_and_explain_take_what_matmul_takes():
    # Each says its arguments itself: for help(), for type checkers, and since `matmul` has no time for one frame more.
    matmul, explain, plan = (
        dict(inspect.signature(call).parameters) for call in (cupygemm.matmul, cupygemm.explain, cupygemm.plan)
    )
    assert list(explain.items()) == list(matmul.items())
    assert matmul.pop("options").kind is inspect.Parameter.VAR_KEYWORD
    assert list(plan.items()) == list(matmul.items())
