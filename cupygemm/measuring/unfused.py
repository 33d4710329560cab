"""What a fused epilogue is compared with: cuBLAS, and one elementwise kernel of CuPy for all terms after it.

One, where a user who writes `gelu(a @ b + bias)` has a kernel for each operator: a baseline that CuPy can reach.
"""

from __future__ import annotations

from cupygemm.epilogue import Epilogue
from cupygemm.kernels.elementwise import epilogue_kernel
from cupygemm.kernels.operands import Operands
from cupygemm.measuring.cublas import Cublas
from cupygemm.problem import Problem


class Unfused:
    """cuBLAS for the product, and what the epilogue says by a kernel of CuPy's."""

    def __init__(self, problem: Problem, cublas: Cublas) -> None:
        """Compiles nothing yet; the first launch does."""
        epilogue = Epilogue.parse(problem.epilogue)
        self._cublas = cublas
        self._rest = None if epilogue in (Epilogue(), Epilogue(scaled=True)) else epilogue_kernel(epilogue)
        self._bias_down = epilogue.bias == "m"

    def launch(self, operands: Operands) -> None:
        """out = activation(alpha · a · b + bias + beta · residual) on the current stream.

        Once it has run it can be captured in a graph.

        Raises:
            ProblemError, CublasError: as `Cublas.gemm`.
        """
        self._cublas.gemm(operands)
        if self._rest is not None:
            bias = operands.bias[:, None] if self._bias_down else operands.bias
            terms = [term for term in (bias, operands.residual) if term is not None]
            # cuBLAS has multiplied by alpha.
            self._rest(operands.out, *terms, 1.0, operands.beta, operands.out)
