"""What users call: `matmul`, `plan`, `explain` and `use`."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

from cupygemm.bundles.bundle import Bundle
from cupygemm.choosing.choice import Choice
from cupygemm.choosing.dispatch import Dispatcher
from cupygemm.errors import BundleError, LaunchError
from cupygemm.kernels import driver
from cupygemm.kernels.compiling import compiling_at_once
from cupygemm.runtime.planned import MatmulPlan
from cupygemm.runtime.product import decide, run, without_defaults
from cupygemm.runtime.repeats import Repeats
from cupygemm.runtime.terms import NO_TERMS, Terms, is_one, read_terms
from cupygemm.text import count, type_name

_dispatcher = Dispatcher(in_background=True)
_repeats = Repeats()
_ONE = 1.0
"""The default of alpha and beta, known by its identity."""


def matmul(
    a: Any,
    b: Any,
    /,
    out: Any = None,
    *,
    bias: Any = None,
    activation: str | None = None,
    residual: Any = None,
    alpha: float = _ONE,
    beta: float = _ONE,
    out_dtype: Any = None,
    **options: Any,
) -> Any:
    """The matrix product of two CuPy arrays: `cupy.matmul`, run by a tuned kernel where a bundle has one.

    An own kernel runs when the product is one of two float16 or bfloat16 matrices, or of two stacks of them, on a
    Hopper GPU, and a bundle in force (the shipped one, and see `use`) has a config for it which was not measured to be
    slower than cuBLAS, or, where none has one for two matrices, the forecast that ships expects one to be faster;
    for stacks there is always a config, if only one chosen by size. Operands that TMA cannot read in place are copied
    where that is expected to pay. An operand of one axis is a row or a column, a stack of matrices times one matrix is
    one product where its rows are equally far apart, and a stack that is broadcast is not copied. Everything else is
    `cupy.matmul`'s, with its result and its errors.

    With any of `bias`, `activation`, `residual`, `alpha`, `beta` and `out_dtype` it is

        activation(alpha · (a · b) + bias + beta · residual)

    in the same launch, in float32 and rounded once. Where no own kernel runs it is cuBLAS's product, rounded to the
    operands' dtype unless the result is float32, and one kernel more.

    Own kernels accumulate in float32, never synchronise, and can be captured in a CUDA graph once they are loaded (by a
    call before, `plan` or `warmup`). All runs on the device of the operands, also where another is current, on that
    device's current stream.

    Args:
        a: [m, k], [k] or […, m, k].
        b: [k, n], [k] or […, k, n]; axes before the last two are broadcast.
        out: what is returned, of the result's shape and of any layout; it may overlap the operands. It may have
            another dtype, if NumPy's casting "same_kind" allows it: what it gets is rounded as without it, then cast.
        bias: an array that broadcasts to the result: [n] for each column, [m, 1] for each row. Own kernels take these
            two, of the result's dtype.
        activation: "relu", "gelu" (by the error function), "gelu_tanh" (its usual approximation) or "silu".
        residual: an array that broadcasts to the result; it may be `out` itself. Own kernels take one of the result's
            shape and dtype.
        alpha, beta: factors of the product and of the residual: numbers. Without a residual beta is 1. A residual times
            0 is not read.
        out_dtype: of the result; by default that of `out`, or of the operands. With `out` it is that of `out`.
        **options: of `cupy.matmul`, without any of the above. With dtype=float32, the product of 16-bit operands is
            left in float32 and never rounded to 16 bits, whatever runs. All others, unless at their defaults, are left
            to `cupy.matmul`.

    Returns:
        `out` where it was given, otherwise a new C-contiguous array of the operands' dtype, or of the one asked for.

    Raises:
        ValueError, TypeError: as `cupy.matmul`; an operand that is no CuPy array is a TypeError. So is, with any of
            `bias` to `out_dtype`, an array that is not floating-point.
        ProblemError: there is no such activation, a term does not broadcast, or beta has nothing to multiply.
        CaptureError: a CUDA graph is being captured, and this call would compile, needs cuBLAS, or needs an array
            beside `out`.
        BundleError: the bundle that CUPYGEMM_BUNDLE names cannot be read.
        SettingError: CUPYGEMM_COMPILE or CUPYGEMM_UNSEEN is not what it may be.
        LaunchError: CuPy is not installed.
    """
    # Spelt out and by identity, since every call passes here.
    beside = bias is not None or activation is not None or residual is not None or out_dtype is not None
    plain = not beside and (alpha is _ONE or is_one(alpha)) and (beta is _ONE or is_one(beta))
    terms = NO_TERMS if plain else read_terms(bias, activation, residual, alpha, beta, out_dtype)
    if not options:
        result = (
            _repeats.answer(_dispatcher, a, b, out)
            if plain
            else _repeats.answer_with_terms(_dispatcher, a, b, out, terms)
        )
        if result is not None:
            return result
    with _device_of(a, b):
        given, left = _usual(out, options)
        generation = _dispatcher.generation
        decision = decide(_dispatcher, a, b, given, left, terms)
        result = run(decision, a, b, given, left, terms)
        if decision.own is not None and not options:
            _repeats.learn(generation, a, b, out, result, decision.own, terms)
        elif decision.own is None and plain and not options:
            _repeats.learn_cupys(generation, a, b, out)
        return result


def plan(
    a: Any,
    b: Any,
    /,
    out: Any = None,
    *,
    bias: Any = None,
    activation: str | None = None,
    residual: Any = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out_dtype: Any = None,
) -> MatmulPlan:
    """`matmul` decided ahead, for many calls with arrays like these: `plan(a, b)` gives what calls it.

        multiply = cupygemm.plan(a, b, out, bias=bias, activation="relu")
        multiply(a, b, out, bias=bias)  # or other arrays of the same shapes, strides and dtypes

    It compiles and loads the kernel, whatever CUPYGEMM_COMPILE says, and launches nothing, so that a CUDA graph can be
    captured with the plan at once. What is in force now stays in force for the plan.

    Args:
        a, b, out, bias, residual: arrays of the shapes, strides and dtypes that the plan will be called with; of their
            contents nothing is read. `out` None for results as `matmul` allocates them.
        activation, out_dtype: as of `matmul`.
        alpha, beta: the factors of calls that do not say others.

    Raises:
        CaptureError: a CUDA graph is being captured, and the kernel is not loaded.
        ValueError, TypeError, ProblemError, BundleError, SettingError, LaunchError: as `matmul`.
    """
    terms = Terms(bias, activation, residual, alpha, beta, out_dtype)
    out, _ = _usual(out, {})
    with _device_of(a, b), compiling_at_once():
        for name, array in (("a", a), ("b", b), ("out", out)):
            if not isinstance(array, driver.cupy().ndarray) and (name != "out" or array is not None):
                raise TypeError(f"plan: {name} is {type_name(array)}: CuPy arrays are needed")
        decision = decide(_dispatcher, a, b, out, {}, terms)
        return MatmulPlan(decision, a, b, out, terms, matmul)


def explain(
    a: Any,
    b: Any,
    /,
    out: Any = None,
    *,
    bias: Any = None,
    activation: str | None = None,
    residual: Any = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out_dtype: Any = None,
    **options: Any,
) -> Choice:
    """What `matmul` would run with these arguments, and why; it compiles and loads the kernel, and launches nothing.

    Where CUPYGEMM_COMPILE says "background" it begins to compile the kernel, and tells what has become of it.

    Raises:
        CaptureError: a CUDA graph is being captured, and the kernel is not loaded.
        ValueError, TypeError, ProblemError, BundleError, SettingError: as `matmul`.
        LaunchError: CuPy is not installed.
    """
    terms = read_terms(bias, activation, residual, alpha, beta, out_dtype)
    with _device_of(a, b, "; the command `cupygemm explain MxNxK` answers without a GPU and without arrays"):
        given, left = _usual(out, options)
        return decide(_dispatcher, a, b, given, left, terms).choice


def bundles_in_force() -> list[tuple[str, Bundle]]:
    """The bundles that `matmul` asks, by name, the newest first and the shipped one last.

    Raises:
        BundleError: the bundle that CUPYGEMM_BUNDLE names cannot be read.
    """
    return _dispatcher.bundles()


def dispatcher() -> Dispatcher:
    """What `matmul` asks: one for the process."""
    return _dispatcher


class use:
    """Puts a bundle in force for `matmul`: until further notice, or inside a `with` block.

        cupygemm.use("tuned.yaml")

        with cupygemm.use("tuned.yaml"):
            c = cupygemm.matmul(a, b)

    The newest bundle is asked first, those measured on the GPU at hand before those of another Hopper GPU, which are
    used with a warning, as are entries of other kernel sources. Those of another kind of GPU are skipped with one. The
    bundle that ships is asked last.
    A bundle is in force for the whole process, all its threads included.

    Args:
        bundle: a `Bundle`, or the path of one.

    Raises:
        BundleError: the file cannot be read as a bundle, or it is neither a file nor a bundle that was given.
    """

    def __init__(self, bundle: Bundle | str | os.PathLike[str]) -> None:
        if not isinstance(bundle, Bundle | str | os.PathLike):
            raise BundleError(f"use({bundle!r}): give a Bundle or the path of one, not {type_name(bundle)}")
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


def _device_of(a: Any, b: Any, instead: str = "") -> AbstractContextManager[Any]:
    """Makes the operands' device current, if they have one and the same; `instead` is told where CuPy is missing."""
    try:
        ndarray = driver.cupy().ndarray
    except LaunchError as error:
        # Where CuPy is missing, what came instead of its arrays is worth a word.
        raise LaunchError(
            f"{error}; the operands are {type_name(a)} and {type_name(b)}, CuPy arrays are needed{instead}"
        ) from error
    if isinstance(a, ndarray) and isinstance(b, ndarray) and a.device == b.device:
        device: AbstractContextManager[Any] = a.device
        return device
    return nullcontext()


def _usual(out: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """`out` and options as nearly all callers give them: an array, and nothing that has no effect."""
    if isinstance(out, tuple) and len(out) == 1:
        (out,) = out
    return out, without_defaults(options) if options else options
