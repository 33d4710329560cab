"""Random products of random kernels against float64: what no list of edges thought of."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from cupygemm.config import KernelSpec
from cupygemm.device import H200
from cupygemm.legality import illegal_reason
from cupygemm.measuring import verify
from cupygemm.problem import Problem
from tests.gpu.protocol import CONFIGS, DTYPES, LAYOUTS, Checks, Kernels, fitting

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("compiled_ahead")]

CASES = 1500
SIZES = st.one_of(st.integers(1, 40), st.integers(1, 700), st.sampled_from([64, 128, 192, 256, 512, 1024, 2049]))
SHRINKING = [phase for phase in Phase if phase is not Phase.explain]


@settings(
    max_examples=CASES,
    deadline=None,
    derandomize=True,
    phases=SHRINKING,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    shape=st.tuples(SIZES, SIZES, SIZES),
    layout=st.sampled_from(LAYOUTS),
    dtypes=st.sampled_from(DTYPES),
    name=st.sampled_from(sorted(CONFIGS)),
    kind=st.sampled_from(verify.DATA_KINDS),
    max_sms=st.sampled_from([None, 1, 24, 78]),
    seed=st.integers(0, 2**31 - 1),
)
def test_random_products(kernels: Kernels, checks: Checks, shape, layout, dtypes, name, kind, max_sms, seed) -> None:
    dtype, out_dtype = dtypes
    problem = Problem(*shape, a_dtype=dtype, b_dtype=dtype, out_dtype=out_dtype, layout=layout)
    config = fitting(CONFIGS[name], problem)
    assume(illegal_reason(config, KernelSpec.of(problem), H200) is None)
    checks.verify(kernels.plan(problem, config, max_sms), (kind,), seed)
