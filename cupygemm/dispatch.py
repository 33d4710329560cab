"""Which kernel runs a product: the bundles in force, the plans made so far, and the reason when it is cuBLAS.

`choose` is a dictionary hit in the steady state. Everything that may be slow (reading a bundle, compiling, loading a
cubin) happens at the first call for a problem on a device, never while a CUDA graph is being captured.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cupygemm import compiler, driver, settings
from cupygemm.bundle import Bundle
from cupygemm.config import TMA_ALIGNMENT, KernelConfig, KernelSpec, illegal_reason
from cupygemm.errors import CaptureError, CompileError, ConfigError, CupygemmError, LaunchError, ProblemError
from cupygemm.plan import LoadedKernel, Plan, misaligned_reason, unstorable_reason
from cupygemm.problem import Problem

log = logging.getLogger(__name__)

OWN_DTYPES = ("float16", "bfloat16")


@dataclass(frozen=True)
class Choice:
    """What would run a product, and why.

    Attributes:
        kernel: "own" or "cublas".
        reason: one line for a person.
        problem: the product as cupygemm sees it; None where it is none of its kind.
        config: the config that would run; None for cuBLAS.
        bundle: where the config comes from.
    """

    kernel: str
    reason: str
    problem: Problem | None = None
    config: KernelConfig | None = None
    bundle: str | None = None

    def __str__(self) -> str:
        what = "the operands" if self.problem is None else str(self.problem)
        lines = [
            f"{what}: {'own kernel' if self.kernel == 'own' else 'cupy.matmul (cuBLAS)'}",
            f"  because {self.reason}",
        ]
        if self.config is not None:
            lines.append("  " + " ".join(f"{name}={value}" for name, value in self.config.to_dict().items()))
        return "\n".join(lines)


@dataclass(frozen=True)
class _Source:
    name: str
    bundle: Bundle


class Dispatcher:
    """The state behind `matmul`: bundles, newest first, and a plan for each (problem, device) seen.

    Safe from several threads: plans are made under a lock and read without one.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._sources: list[_Source] | None = None
        self._chosen: dict[tuple[Problem, int], tuple[Choice, Plan | None]] = {}
        self._loaded: dict[tuple[KernelSpec, KernelConfig, int], LoadedKernel | CupygemmError] = {}

    def push(self, bundle: Bundle, name: str) -> object:
        """Puts a bundle before those in force; gives a token for `remove`."""
        source = _Source(name, bundle)
        with self._lock:
            self._sources = [source, *self._in_force()]
            self._chosen = {}
        return source

    def remove(self, token: object) -> None:
        """Takes a bundle out again; one that is no longer in force is ignored."""
        with self._lock:
            self._sources = [source for source in self._in_force() if source is not token]
            self._chosen = {}

    def choose(self, a: Any, b: Any, out: Any = None) -> tuple[Choice, Plan | None]:
        """What runs a · b, with the plan to launch when it is an own kernel.

        Raises:
            CaptureError: a CUDA graph is being captured and the kernel is not loaded yet.
            BundleError: the bundle that CUPYGEMM_BUNDLE names cannot be read.
        """
        problem = problem_of(a, b, out)
        if isinstance(problem, str):
            return Choice("cublas", problem), None
        key = (problem, a.device.id)
        known = self._chosen.get(key)
        return self._decide(key) if known is None else known

    def _decide(self, key: tuple[Problem, int]) -> tuple[Choice, Plan | None]:
        problem, device = key
        with self._lock:
            if key not in self._chosen:
                self._chosen[key] = self._prepare(problem, device)
            return self._chosen[key]

    def _prepare(self, problem: Problem, device: int) -> tuple[Choice, Plan | None]:
        spec = driver.device_spec(device)
        if not spec.is_hopper:
            return Choice("cublas", f"{spec.name} is not a Hopper GPU", problem), None
        passed_over: list[str] = []
        for source in self._in_force():
            entry = source.bundle.entry(problem)
            if entry is None:
                continue
            reason = source.bundle.mismatch(spec, compiler.source_digest())
            if reason is None:
                try:
                    plan = Plan(problem, self._load(problem, entry.config, device))
                except (CompileError, ConfigError, LaunchError, ProblemError) as error:
                    reason = str(error)
                else:
                    why = f"{source.name} has a config for it"
                    return Choice("own", why, problem, entry.config, source.name), plan
            passed_over.append(f"the entry of {source.name} is skipped: {reason}")
            log.warning("%s: %s", problem, passed_over[-1])
        return Choice("cublas", "; ".join(passed_over) or "no bundle in force has a config for it", problem), None

    def _load(self, problem: Problem, config: KernelConfig, device: int) -> LoadedKernel:
        spec = KernelSpec.of(problem)
        key = (spec, config, device)
        if key not in self._loaded:
            if is_capturing():
                raise CaptureError(
                    f"{problem}: its kernel is not loaded, and a CUDA graph is being captured: call matmul once with "
                    "operands of this shape before the capture"
                )
            self._loaded[key] = _try_loading(spec, config, device)
        kernel = self._loaded[key]
        if isinstance(kernel, CupygemmError):
            raise kernel
        return kernel

    def _in_force(self) -> list[_Source]:
        if self._sources is None:
            path = settings.bundle_path()
            self._sources = [] if path is None else [_Source(str(path), Bundle.load(Path(path)))]
        return self._sources


def _try_loading(spec: KernelSpec, config: KernelConfig, device: int) -> LoadedKernel | CupygemmError:
    """The kernel, or what stands in its way: remembered too, so that a broken config is tried once."""
    reason = illegal_reason(config, spec, driver.device_spec(device))
    if reason is not None:
        return ConfigError(reason)
    try:
        return LoadedKernel(compiler.compile_kernel(spec, config), device)
    except (CompileError, ConfigError, LaunchError) as error:
        return error


def is_capturing() -> bool:
    """Whether CuPy's current stream is being captured into a CUDA graph."""
    stream = driver.cupy().cuda.get_current_stream()
    # The legacy default stream cannot be captured, and asking it during another capture is an error.
    return stream.ptr != 0 and bool(stream.is_capturing())


def problem_of(a: Any, b: Any, out: Any) -> Problem | str:
    """The problem that these arrays pose, or why no kernel of this package computes it."""
    ndarray = driver.cupy().ndarray
    if not isinstance(a, ndarray) or not isinstance(b, ndarray):
        return "an operand is not a CuPy array"
    if a.ndim != 2 or b.ndim != 2:
        return f"operands have {a.ndim} and {b.ndim} axes, own kernels take two"
    dtype = a.dtype.name
    if b.dtype.name != dtype or dtype not in OWN_DTYPES:
        return f"operands are {dtype} and {b.dtype.name}, own kernels take two of {' or '.join(OWN_DTYPES)}"
    (m, k), n = a.shape, b.shape[1]
    if b.shape[0] != k:
        return f"shapes {a.shape} and {b.shape} do not match"
    if not (m and n and k):
        return "an extent is zero"
    if a.device != b.device:
        return f"operands are on devices {a.device.id} and {b.device.id}"
    layout = _layout_letter(a) + _layout_letter(b)
    if "?" in layout:
        name, array = ("a", a) if layout[0] == "?" else ("b", b)
        return f"TMA cannot copy {name}: {misaligned_reason(array, array.strides[0] == array.dtype.itemsize)}"
    reason = None if out is None else _unfit_reason(out, a, (m, n))
    return reason or Problem(m, n, k, a_dtype=dtype, b_dtype=dtype, out_dtype=dtype, layout=layout)


def _layout_letter(array: Any) -> str:
    if misaligned_reason(array, False) is None:
        return "n"
    return "t" if misaligned_reason(array, True) is None else "?"


def _unfit_reason(out: Any, a: Any, shape: tuple[int, int]) -> str | None:
    """Why an own kernel cannot write into `out`."""
    if not isinstance(out, type(a)) or out.shape != shape or out.dtype != a.dtype:
        return f"out is not a {a.dtype.name} array of shape {shape}"
    if out.device != a.device:
        return f"out is on device {out.device.id}, the operands on {a.device.id}"
    reason = unstorable_reason(out)
    if reason is None and shape[1] * out.dtype.itemsize % TMA_ALIGNMENT == 0:
        reason = misaligned_reason(out, False)
    return None if reason is None else f"out cannot be stored to: {reason}"
