"""What users call: `matmul`, `explain` and `use`."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from cupygemm import driver
from cupygemm.bundle import Bundle
from cupygemm.dispatch import Choice, Dispatcher, is_capturing
from cupygemm.errors import CaptureError

_dispatcher = Dispatcher()


def matmul(a: Any, b: Any, /, out: Any = None, **options: Any) -> Any:
    """The matrix product of two CuPy arrays: `cupy.matmul`, run by a tuned kernel where a bundle has one.

    An own kernel runs when both operands are two-dimensional float16 or bfloat16 arrays that TMA can read in place,
    on a Hopper GPU, and a bundle in force (see `use`) has a config for exactly this problem. Everything else is
    `cupy.matmul`'s, with its result and its errors. Own kernels accumulate in fp32, run on the current stream of the
    operands' device, never synchronise, and can be captured in a CUDA graph once they have been called before.

    Args:
        a: [m, k].
        b: [k, n].
        out: [m, n] to write into; it may overlap the operands.
        **options: `casting`, `dtype`, … of `cupy.matmul`; with any of them, cuBLAS runs.

    Returns:
        [m, n] of the operands' dtype: `out` where it was given.

    Raises:
        CaptureError: a CUDA graph is being captured, and this call would compile or needs cuBLAS.
        BundleError: the bundle that CUPYGEMM_BUNDLE names cannot be read.
    """
    cupy = driver.cupy()
    plan, reason = None, f"{', '.join(options)}: options of cupy.matmul"
    if not options:
        choice, plan = _dispatcher.choose(a, b, out)
        reason = choice.reason
    if plan is None:
        if is_capturing():
            raise CaptureError(f"cupy.matmul cannot be captured in a CUDA graph, and no own kernel runs: {reason}")
        return cupy.matmul(a, b, out=out, **options)
    with a.device:
        if out is None:
            result = cupy.empty((a.shape[0], b.shape[1]), dtype=a.dtype)
        elif _overlap(out, a) or _overlap(out, b):
            result = cupy.empty(out.shape, dtype=out.dtype)
        else:
            result = out
        plan(a, b, result)
        if out is not None and result is not out:
            out[...] = result
    return result if out is None else out


def explain(a: Any, b: Any, /, out: Any = None) -> Choice:
    """What `matmul(a, b, out)` would run, and why; it compiles and loads the kernel, and launches nothing."""
    return _dispatcher.choose(a, b, out)[0]


class use:
    """Puts a bundle in force for `matmul`: until further notice, or inside a `with` block.

        cupygemm.use("tuned.yaml")

        with cupygemm.use("tuned.yaml"):
            c = cupygemm.matmul(a, b)

    The newest bundle is asked first. Entries of another device or of other kernel sources are skipped with a warning.
    A bundle is in force for the whole process, all its threads included.

    Args:
        bundle: a `Bundle`, or the path of one.

    Raises:
        BundleError: the file cannot be read as a bundle.
    """

    def __init__(self, bundle: Bundle | str | Path) -> None:
        loaded = bundle if isinstance(bundle, Bundle) else Bundle.load(Path(bundle))
        self._token = _dispatcher.push(loaded, "the bundle given" if isinstance(bundle, Bundle) else str(bundle))

    def undo(self) -> None:
        """Takes the bundle out of force again."""
        _dispatcher.remove(self._token)

    def __enter__(self) -> use:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def _overlap(x: Any, y: Any) -> bool:
    return bool(driver.cupy().may_share_memory(x, y))
