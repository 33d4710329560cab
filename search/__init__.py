"""The search: spaces of kernel configs, strategies that propose them, runners that measure or replay them.

The directory `search/` is reached as `cupygemm.search` only, through the symlink in the package: under any other name
its modules would exist twice, and a `KernelConfig` of one would not be that of the other.
"""

if __name__ != "cupygemm.search":
    raise ImportError(f"import this package as cupygemm.search, not as {__name__}")
