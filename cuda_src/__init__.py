"""Device code, as package data of `cupygemm.cuda_src`: `gemm.cuh` is the page to read first."""
