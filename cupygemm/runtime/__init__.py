"""What a call of `matmul` is, and what it leaves to CuPy."""
