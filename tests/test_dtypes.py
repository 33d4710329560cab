"""The table of dtypes against NumPy's and ml_dtypes' own figures, and against the enumerators of the kernel."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cupygemm.dtypes import DTYPES, OPERAND_DTYPES, RESULT_DTYPES, DType
from cupygemm.kernels.kernel_source import cuda_sources
from cupygemm.measuring.verify import numpy_dtype


@pytest.mark.parametrize("row", DTYPES.values(), ids=DTYPES)
def test_a_row_says_what_the_dtype_is(row: DType) -> None:
    if not row.in_numpy:
        pytest.importorskip("ml_dtypes")
    dtype = numpy_dtype(row.name)
    assert (dtype.name, dtype.itemsize, hasattr(np, row.name)) == (row.name, row.bytes, row.in_numpy)
    info = np.finfo(dtype) if row.in_numpy else pytest.importorskip("ml_dtypes").finfo(dtype)
    assert row.unit_roundoff == float(info.eps) / 2
    assert row.tiny in (float(info.smallest_subnormal) / 2, float(info.smallest_normal))


def test_the_kernel_names_the_same_dtypes_in_the_same_order() -> None:
    (enumerators,) = re.findall(r"enum class DType \w*:?[^{]*\{([^}]*)\}", cuda_sources()["config.cuh"])
    assert re.findall(r"\w+", enumerators) == list(DTYPES)


def test_what_is_read_and_written() -> None:
    assert (OPERAND_DTYPES, RESULT_DTYPES) == (("float16", "bfloat16"), ("float16", "bfloat16", "float32"))
    assert {DTYPES[name].mma_k for name in OPERAND_DTYPES} == {16}
