"""Which kernel runs a product: the bundles in force, the plans made so far, and the reason when it is cuBLAS.

`choose` is a dictionary hit in the steady state. Everything that may be slow (reading a bundle, compiling, loading a
cubin) happens at the first call for a problem on a device, never while a CUDA graph is being captured.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cupygemm import compiler, driver, settings
from cupygemm.bundle import Bundle, Entry
from cupygemm.config import TMA_ALIGNMENT, KernelConfig, KernelSpec
from cupygemm.device import DeviceSpec
from cupygemm.dtypes import DTYPES, OPERAND_DTYPES, RESULT_DTYPES
from cupygemm.epilogue import NONE
from cupygemm.errors import CaptureError, CompileError, ConfigError, CupygemmError, LaunchError, ProblemError
from cupygemm.legality import illegal_reason
from cupygemm.placement import misaligned_reason, unstorable_reason
from cupygemm.plan import LoadedKernel, Plan, oversize_reason
from cupygemm.problem import Problem
from cupygemm.stacks import Stack
from cupygemm.text import count

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """What would run a product, and why.

    Attributes:
        kernel: "own" or "cublas".
        reason: one line for a person.
        problem: the product as cupygemm sees it; None where it is none of its kind.
        config: the config that would run; None for cuBLAS.
        bundle: where the config comes from.
        entry: its entry there, with the times that it was chosen for.
    """

    kernel: str
    reason: str
    problem: Problem | None = None
    config: KernelConfig | None = None
    bundle: str | None = None
    entry: Entry | None = None

    def __str__(self) -> str:
        what = "the operands" if self.problem is None else str(self.problem)
        lines = [
            f"{what}: {'own kernel' if self.kernel == 'own' else 'cupy.matmul (cuBLAS)'}",
            f"  because {self.reason}",
        ]
        if self.problem is not None:
            lines.append(f"  {_layout_words(self.problem.layout)}")
        if self.config is not None:
            lines.append("  " + " ".join(f"{name}={value}" for name, value in self.config.to_dict().items()))
        if self.entry is not None:
            lines += [f"  {line}" for line in _entry_words(self.entry)]
        return "\n".join(lines)


def _layout_words(layout: str) -> str:
    stored = {"n": "stored row-major", "t": "stored transposed"}
    return f"layout {layout}: A {stored[layout[0]]}, B {stored[layout[1]]}"


def _entry_words(entry: Entry) -> Iterator[str]:
    """What was measured of an entry's config, and how it was found."""
    measured, search = entry.measured, entry.search
    facts = [f"{measured.us:.2f} µs a launch"]
    if measured.speedup is not None:
        facts.append(f"{measured.speedup:.3f}× cuBLAS")
    if measured.registers is not None:
        facts.append(f"{measured.registers} registers a thread at launch")
    if measured.spill_bytes:
        facts.append(f"{measured.spill_bytes} bytes spilled a thread")
    yield f"measured: {', '.join(facts)}"
    yield f"found by {search.strategy}, {count(search.evaluations, 'evaluation')}"


@dataclass(frozen=True, eq=False)
class _Source:
    name: str
    bundle: Bundle


class Dispatcher:
    """The state behind `matmul`: bundles, newest first, and a plan for each (problem, device) seen.

    Safe from several threads: plans are made under a lock and read without one.
    """

    def __init__(self, only: Mapping[str, Bundle] | None = None) -> None:
        """Nothing is read or compiled yet.

        Args:
            only: bundles by name, the first one asked first, in place of the one that CUPYGEMM_BUNDLE names.
        """
        self._lock = threading.RLock()
        self._sources = None if only is None else [_Source(name, bundle) for name, bundle in only.items()]
        self._chosen: dict[tuple[Problem, int], tuple[Choice, Plan | None]] = {}
        self._loaded: dict[tuple[KernelSpec, KernelConfig, int], LoadedKernel | CupygemmError] = {}
        self._warned: set[str] = set()

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

    def choose(
        self, a: Any, b: Any, out: Any = None, out_dtype: str | None = None, epilogue: str = NONE
    ) -> tuple[Choice, Plan | None]:
        """What runs a · b, with the plan to launch when it is an own kernel.

        Args:
            a, b, out, out_dtype, epilogue: as of `problem_of`.

        Raises:
            CaptureError: a CUDA graph is being captured and the kernel is not loaded yet.
            BundleError: the bundle that CUPYGEMM_BUNDLE names cannot be read.
        """
        problem = problem_of(a, b, out, out_dtype, epilogue)
        if isinstance(problem, str):
            return Choice("cublas", problem), None
        key = (problem, a.device.id)
        known = self._chosen.get(key)
        return self.choose_for(*key) if known is None else known

    def choose_for(self, problem: Problem, index: int) -> tuple[Choice, Plan | None]:
        """What runs a problem whose operands own kernels can read, on a CUDA device.

        Raises:
            CaptureError: as `choose`.
            BundleError: as `choose`.
        """
        key = (problem, index)
        with self._lock:
            if key not in self._chosen:
                self._chosen[key] = self._prepare(problem, index)
            return self._chosen[key]

    def bundles(self) -> list[tuple[str, Bundle]]:
        """The bundles in force by name, the newest first.

        Raises:
            BundleError: the bundle that CUPYGEMM_BUNDLE names cannot be read.
        """
        with self._lock:
            return [(source.name, source.bundle) for source in self._in_force()]

    def problems(self) -> list[Problem]:
        """What the bundles in force have entries for, those of the newest bundle first.

        Raises:
            BundleError: the bundle that CUPYGEMM_BUNDLE names cannot be read.
        """
        entries = [entry for _, bundle in self.bundles() for entry in bundle.entries]
        return list(dict.fromkeys(entry.problem for entry in entries))

    def choose_on(self, problem: Problem, device: DeviceSpec) -> Choice:
        """What would run a problem on a GPU that need not be here: nothing is compiled or loaded.

        Raises:
            BundleError: as `choose`.
        """

        def check(entry: Entry) -> None:
            reason = oversize_reason(problem) or illegal_reason(entry.config, KernelSpec.of(problem), device)
            if reason is not None:
                raise ConfigError(reason)

        with self._lock:
            return self._first_that_works(problem, device, check)[0]

    def _prepare(self, problem: Problem, index: int) -> tuple[Choice, Plan | None]:
        def make(entry: Entry) -> Plan:
            return Plan(problem, self._load(problem, entry.config, index))

        return self._first_that_works(problem, driver.device_spec(index), make)

    def _first_that_works(
        self, problem: Problem, device: DeviceSpec, make: Callable[[Entry], Plan | None]
    ) -> tuple[Choice, Plan | None]:
        """The first entry that `make` raises nothing on, with what it makes of it."""
        if not device.is_hopper:
            return Choice("cublas", f"{device.name} is not a Hopper GPU", problem), None
        passed_over: list[str] = []
        for source, entry in self._entries(problem, device):
            reason = source.bundle.mismatch(device, compiler.source_digest())
            if reason is None:
                try:
                    plan = make(entry)
                except (CompileError, ConfigError, LaunchError, ProblemError) as error:
                    reason = str(error)
                else:
                    why = f"{source.name} has a config for it{self._told_where(source, device)}"
                    return Choice("own", why, problem, entry.config, source.name, entry), plan
            passed_over.append(f"the entry of {source.name} is skipped: {reason}")
            log.warning("%s: %s", problem, passed_over[-1])
        return Choice("cublas", "; ".join(passed_over) or "no bundle in force has a config for it", problem), None

    def _entries(self, problem: Problem, device: DeviceSpec) -> list[tuple[_Source, Entry]]:
        """The entries for a problem: those measured on this very GPU first, then those of the newest bundle."""
        found = [(source, source.bundle.entry(problem)) for source in self._in_force()]
        known = [(source, entry) for source, entry in found if entry is not None]
        return sorted(known, key=lambda pair: pair[0].bundle.elsewhere(device) is not None)

    def _told_where(self, source: _Source, device: DeviceSpec) -> str:
        """What to add where a bundle is of another GPU, which is also logged once."""
        elsewhere = source.bundle.elsewhere(device)
        if elsewhere is None:
            return ""
        warning = f"{source.name} was {elsewhere}"
        if warning not in self._warned:
            self._warned.add(warning)
            log.warning("%s", warning)
        return f", {elsewhere}"

    def _load(self, problem: Problem, config: KernelConfig, index: int) -> LoadedKernel:
        spec = KernelSpec.of(problem)
        key = (spec, config, index)
        if key not in self._loaded:
            if is_capturing():
                raise CaptureError(
                    f"{problem}: its kernel is not loaded, and a CUDA graph is being captured: call matmul once with "
                    "operands of this shape before the capture"
                )
            self._loaded[key] = _try_loading(spec, config, index)
        kernel = self._loaded[key]
        if isinstance(kernel, CupygemmError):
            raise kernel
        return kernel

    def _in_force(self) -> list[_Source]:
        if self._sources is None:
            path = settings.bundle_path()
            self._sources = [] if path is None else [_Source(str(path), Bundle.load(Path(path)))]
        return self._sources


def _try_loading(spec: KernelSpec, config: KernelConfig, index: int) -> LoadedKernel | CupygemmError:
    """The kernel, or what stands in its way: remembered too, so that a broken config is tried once."""
    reason = illegal_reason(config, spec, driver.device_spec(index))
    if reason is not None:
        return ConfigError(reason)
    try:
        return LoadedKernel(compiler.compile_kernel(spec, config), index)
    except (CompileError, ConfigError, LaunchError) as error:
        return error


def is_capturing() -> bool:
    """Whether CuPy's current stream is being captured into a CUDA graph."""
    stream = driver.cupy().cuda.get_current_stream()
    # The legacy default stream cannot be captured, and asking it during another capture is an error.
    return stream.ptr != 0 and bool(stream.is_capturing())


def problem_of(a: Any, b: Any, out: Any, out_dtype: str | None = None, epilogue: str = NONE) -> Problem | str:
    """The problem that these arrays pose, or why no kernel of this package computes it.

    Args:
        a: [m, k], or [batch, m, k].
        b: [k, n], or [batch, k, n].
        out: [m, n] or [batch, m, n] to write into; None for a new array.
        out_dtype: of the result; None for the operands'.
        epilogue: as `Epilogue` writes it.
    """
    ndarray = driver.cupy().ndarray
    if not isinstance(a, ndarray | Stack) or not isinstance(b, ndarray | Stack):
        return "an operand is not a CuPy array"
    if a.ndim != b.ndim or a.ndim not in (2, 3):
        return f"operands have {a.ndim} and {b.ndim} axes, and are no two matrices or stacks of equal steps"
    dtype = a.dtype.name
    if b.dtype.name != dtype or dtype not in OPERAND_DTYPES:
        return f"operands are {dtype} and {b.dtype.name}, own kernels take two of {' or '.join(OPERAND_DTYPES)}"
    (m, k), n, batch = a.shape[-2:], b.shape[-1], math.prod(a.shape[:-2])
    if b.shape[-2] != k or a.shape[:-2] != b.shape[:-2]:
        return f"shapes {a.shape} and {b.shape} do not match"
    if not (m and n and k and batch):
        return "an extent is zero"
    if a.device != b.device:
        return f"operands are on devices {a.device.id} and {b.device.id}"
    layout = _layout_letter(a) + _layout_letter(b)
    if "?" in layout:
        name, array = ("a", a) if layout[0] == "?" else ("b", b)
        return f"TMA cannot copy {name}: {misaligned_reason(array, array.strides[-2] == array.dtype.itemsize)}"
    out_dtype = out_dtype or dtype
    reason = None if out is None else unfit_reason(out, a, (*a.shape[:-2], m, n), out_dtype)
    return reason or Problem(
        m, n, k, batch, a_dtype=dtype, b_dtype=dtype, out_dtype=out_dtype, layout=layout, epilogue=epilogue
    )


def unposed_reason(problem: Problem) -> str | None:
    """Why `matmul` never asks for this problem when its operands have no gaps between rows, or None when it does."""
    if problem.out_dtype not in RESULT_DTYPES:
        return f"own kernels give {' or '.join(RESULT_DTYPES)}, not {problem.out_dtype}"
    itemsize = DTYPES[problem.a_dtype].bytes
    shapes = {"a": (problem.m, problem.k), "b": (problem.k, problem.n)}
    for (name, (rows, columns)), letter in zip(shapes.items(), problem.layout, strict=True):
        row, column = (columns * itemsize, itemsize) if letter == "n" else (itemsize, rows * itemsize)
        shape, strides = (problem.batch, rows, columns), (rows * columns * itemsize, row, column)
        dtype, data = SimpleNamespace(itemsize=itemsize), SimpleNamespace(ptr=0)
        array = SimpleNamespace(shape=shape, strides=strides, dtype=dtype, data=data)
        reason = misaligned_reason(array, letter == "t")
        if reason is not None:
            return f"TMA cannot copy {name} where its rows lie without gaps: {reason}"
    return None


def _layout_letter(array: Any) -> str:
    if misaligned_reason(array, False) is None:
        return "n"
    return "t" if misaligned_reason(array, True) is None else "?"


def unfit_reason(out: Any, a: Any, shape: tuple[int, ...], dtype: str) -> str | None:
    """Why an own kernel cannot write a product of this shape and dtype, on the device of `a`, into `out`."""
    if not isinstance(out, driver.cupy().ndarray | Stack) or out.shape != shape or out.dtype.name != dtype:
        return f"out is not a {dtype} array of shape {shape}"
    if out.device != a.device:
        return f"out is on device {out.device.id}, the operands on {a.device.id}"
    reason = unstorable_reason(out)
    if reason is None and shape[-1] * out.dtype.itemsize % TMA_ALIGNMENT == 0:
        reason = misaligned_reason(out, False)
    return None if reason is None else f"out cannot be stored to: {reason}"
