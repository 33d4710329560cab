"""Products with epilogues that no own kernel runs: CuPy's product, and one elementwise kernel for all the rest."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupygemm.epilogue import NONE, Epilogue
from cupygemm.kernels import driver
from cupygemm.kernels.elementwise import epilogue_kernel
from cupygemm.runtime.fallback import fall_back, wants_float32
from cupygemm.runtime.terms import Terms, check_shapes, is_same
from cupygemm.views.posing import Posed, overlap


def fall_back_with_terms(
    a: Any, b: Any, out: Any, terms: Terms, matrices: Posed | None, dtype: np.dtype[Any] | None
) -> Any:
    """activation(alpha · a · b + bias + beta · residual), into `out` or a new array.

    The product is rounded to the operands' dtype, but not to 16 bits where the result is float32.

    Args:
        a, b, out, terms: as of `matmul`, checked.
        matrices: the product as one of two matrices, where it can be.
        dtype: of the result.

    Raises:
        ValueError, TypeError: as `cupy.matmul`.
        ProblemError: a term does not broadcast to the product.
    """
    options = {"dtype": dtype} if wants_float32(a, b, dtype) else {}
    product = fall_back(a, b, None, options, matrices)
    target = driver.cupy().empty(product.shape, dtype=dtype) if out is None else out
    check_shapes(out, terms, product.shape)
    added = [term for term in (terms.bias, terms.residual) if term is not None]
    added = [term.copy() if overlap(target, term) and not is_same(target, term) else term for term in added]
    wide = "float64" if "float64" in (product.dtype.name, target.dtype.name) else "float32"
    # Along which axis a bias goes, its shape says.
    kind = NONE if terms.bias is None else "n"
    epilogue = Epilogue(kind, terms.residual is not None, terms.activation or NONE)
    epilogue_kernel(epilogue, wide)(product, *added, *terms.factors, target)
    return target
