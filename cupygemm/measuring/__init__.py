"""Verify and time: own kernels beside cuBLAS and cublasLt, and where a figure comes from."""
