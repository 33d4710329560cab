"""What users call: `matmul`, `explain` and `use`."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from cupygemm import driver
from cupygemm.bundle import Bundle
from cupygemm.dispatch import Choice, Dispatcher, is_capturing
from cupygemm.errors import BundleError, CaptureError, LaunchError
from cupygemm.text import count

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
        LaunchError: CuPy is not installed.
    """
    cupy = _cupy_for(a, b)
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
    """What `matmul(a, b, out)` would run, and why; it compiles and loads the kernel, and launches nothing.

    Raises:
        LaunchError: CuPy is not installed.
    """
    _cupy_for(a, b)
    return _dispatcher.choose(a, b, out)[0]


class use:
    """Puts a bundle in force for `matmul`: until further notice, or inside a `with` block.

        cupygemm.use("tuned.yaml")

        with cupygemm.use("tuned.yaml"):
            c = cupygemm.matmul(a, b)

    The newest bundle is asked first, those measured on the GPU at hand before those of another Hopper GPU, which are
    used with a warning. Entries of another kind of GPU or of other kernel sources are skipped with one.
    A bundle is in force for the whole process, all its threads included.

    Args:
        bundle: a `Bundle`, or the path of one.

    Raises:
        BundleError: the file cannot be read as a bundle, or it is neither a file nor a bundle that was given.
    """

    def __init__(self, bundle: Bundle | str | os.PathLike[str]) -> None:
        if not isinstance(bundle, Bundle | str | os.PathLike):
            raise BundleError(f"use({bundle!r}): give a Bundle or the path of one, not {_kind(bundle)}")
        self._bundle = bundle if isinstance(bundle, Bundle) else Bundle.load(Path(bundle))
        self._name = "the bundle given" if isinstance(bundle, Bundle) else str(bundle)
        self._token = _dispatcher.push(self._bundle, self._name)
        self._in_force = True

    def __repr__(self) -> str:
        held = count(len(self._bundle.entries), "entry", "entries")
        state = "in force" if self._in_force else "no longer in force"
        return f"<cupygemm.use: {self._name}, {held} for {self._bundle.device.name}, {state}>"

    def undo(self) -> None:
        """Takes the bundle out of force again."""
        _dispatcher.remove(self._token)
        self._in_force = False

    def __enter__(self) -> use:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def _cupy_for(a: Any, b: Any) -> ModuleType:
    """CuPy, for these operands: where it is missing, what came instead of its arrays is worth a word."""
    try:
        return driver.cupy()
    except LaunchError as error:
        raise LaunchError(f"{error}; the operands are {_kind(a)} and {_kind(b)}, CuPy arrays are needed") from error


def _kind(value: Any) -> str:
    """The type's name with its module: "numpy.ndarray", "list"."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _overlap(x: Any, y: Any) -> bool:
    return bool(driver.cupy().may_share_memory(x, y))
