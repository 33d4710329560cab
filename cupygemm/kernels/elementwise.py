"""An epilogue as an elementwise kernel of CuPy's, after a product that was computed without it."""

from __future__ import annotations

from functools import cache
from typing import Any

from cupygemm.epilogue import NONE, Epilogue, activation_code
from cupygemm.kernels import driver


@cache
def epilogue_kernel(epilogue: Epilogue, wide: str = "float32") -> Any:
    """A kernel for out = activation(alpha · product + bias + beta · residual), rounded once, and compiled when called.

    It takes the product, the bias and the residual where the epilogue has them, alpha, beta, and the array to write
    into. Dtypes are free, and shapes broadcast.

    Args:
        epilogue: its terms; along which axis a bias goes is for its shape to say.
        wide: "float32" or "float64", in which it computes.
    """
    real = "double" if wide == "float64" else "float"
    has_bias = epilogue.bias != NONE
    inputs = ["T product", "B bias" * has_bias, "R residual" * epilogue.residual, f"{wide} alpha", f"{wide} beta"]
    terms = [f"alpha * {real}(product)", f"{real}(bias)" * has_bias, f"beta * {real}(residual)" * epilogue.residual]
    code = f"{real} x = {' + '.join(filter(None, terms))}; out = O({activation_code(epilogue.activation, real)});"
    return driver.cupy().ElementwiseKernel(", ".join(filter(None, inputs)), "O out", code, "cupygemm_epilogue")
