"""Kernels compiled and loaded ahead of the calls that need them: `warmup`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cupygemm.atomic import check_folder
from cupygemm.bundles.bundle import Bundle, gpu_words
from cupygemm.bundles.bundle_check import spec_of
from cupygemm.choosing.dispatch import UNUSABLE, Dispatcher
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200, DeviceSpec
from cupygemm.errors import BundleError, CaptureError, CompileError, LaunchError, ProblemError
from cupygemm.kernels import driver, kernel_cache
from cupygemm.kernels.ahead import compile_each
from cupygemm.kernels.capture import is_capturing
from cupygemm.kernels.compiling import PACKING, Compilations, Cubin, compiling_at_once, cubin_of
from cupygemm.problem import Problem
from cupygemm.runtime import api
from cupygemm.text import count
from cupygemm.views.gapless import Gapless, gapless
from cupygemm.views.reading import unposed_reason

Progress = Callable[[int, int], object]
"""Told how many kernels are there, of how many."""


@dataclass(frozen=True)
class Warmup:
    """What `warmup` came to.

    Attributes:
        device: the GPU that it was done for.
        loaded: whether that GPU is here, and the kernels are loaded on it; else they are compiled only.
        compiled: kernels that were compiled.
        cached: kernels that were in the disk cache before.
        ready: problems whose kernel is ready now.
        cublas: problems that `cupy.matmul` computes, and why.
        failed: problems whose kernel cannot be had, and why.
        seconds: how long it took.
        uncopied: why operands that TMA cannot read cannot be copied for it; None where the kernel that does it is ready
            too, or none is needed. Problems whose operands always need copies are then among those that failed.
    """

    device: DeviceSpec
    loaded: bool
    compiled: int
    cached: int
    ready: tuple[Problem, ...]
    cublas: dict[Problem, str]
    failed: dict[Problem, str]
    seconds: float
    uncopied: str | None = None

    def __str__(self) -> str:
        kernels = f"{count(self.compiled, 'kernel')} compiled, {self.cached} in the cache before"
        where = "loaded" if self.loaded else "not loaded, since that GPU is not at hand"
        problems = f"{count(len(self.ready), 'problem')} ready, {len(self.cublas)} left to cuBLAS"
        failed = f", {len(self.failed)} failed" if self.failed else ""
        uncopied = "" if self.uncopied is None else f", operands cannot be copied for TMA: {self.uncopied}"
        return f"{gpu_words(self.device)}: {kernels}, {where}; {problems}{failed}{uncopied} ({self.seconds:.1f} s)"


def warmup(
    bundle: Bundle | str | os.PathLike[str] | None = None,
    *,
    problems: Iterable[Problem] | None = None,
    device: int | None = None,
    threads: int | None = None,
) -> Warmup:
    """Compiles ahead, in parallel, what a bundle has configs for, and loads it on a GPU.

        cupygemm.use("tuned.yaml")
        print(cupygemm.warmup())

    First calls of these problems then neither compile nor load, and can be captured in a CUDA graph; also with operands
    that TMA cannot read, for which one kernel more is compiled, that copies them. Kernels go to the disk cache, for
    later processes too. Where the GPU is no Hopper GPU, or there is none, they are compiled for the one
    that the bundle was measured on, and not loaded. It does what it is told, whatever CUPYGEMM_COMPILE says, and prints
    nothing.

    Args:
        bundle: a `Bundle` or the path of one, which need not be in force; None for those in force, without the shipped
            one if there is another.
        problems: these alone, for which there may also be no entry: what `matmul` would run for them. None for those
            that the bundles have entries for.
        device: index of a CUDA device; None for the current one.
        threads: that compile; None for one a core.

    Returns:
        What was compiled, what was in the cache, and what failed and why. `str` of it is a line for a person.

    Raises:
        BundleError: the bundle cannot be read, or is neither a file nor a bundle.
        ProblemError: one of `problems` is none.
        ValueError: `threads` is less than 1.
        CompileError: NVRTC is missing.
        OSError: the disk cache cannot be written.
        LaunchError: there is no such device.
        CaptureError: a CUDA graph is being captured.
    """
    if bundle is None:
        return warm_up(api.dispatcher(), problems, device, threads)
    if not isinstance(bundle, Bundle | str | os.PathLike):
        raise BundleError(f"warmup({bundle!r}): give a Bundle or the path of one, or nothing for those in force")
    given = bundle if isinstance(bundle, Bundle) else Bundle.load(Path(bundle))
    name = "the bundle given" if isinstance(bundle, Bundle) else str(bundle)
    return warm_up(Dispatcher({name: given}, kernels=api.dispatcher().kernels), problems, device, threads)


def warm_up(
    dispatcher: Dispatcher,
    problems: Iterable[Problem] | None = None,
    device: int | None = None,
    threads: int | None = None,
    progress: Progress = lambda done, total: None,
) -> Warmup:
    """The same with what a dispatcher would choose.

    Raises:
        As `warmup`.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads is {threads}: give 1 or more, or None for one a core")
    began = time.monotonic()
    index, spec = _gpu(dispatcher, device)
    if index is not None and is_capturing():
        raise CaptureError("a CUDA graph is being captured, and warmup compiles and loads: call it before the capture")
    asked = dispatcher.problems() if problems is None else _checked(problems)
    wanted, cublas = _choose(dispatcher, asked, spec)
    cubins = {problem: cubin_of(KernelSpec.of(problem), config) for problem, config in wanted.items()}
    different = {cubin.key: cubin for cubin in (*cubins.values(), *([PACKING] if wanted else []))}
    cached, errors = _compile(dispatcher.kernels.compilations, different, threads, progress)
    failed = {problem: errors[cubin.key] for problem, cubin in cubins.items() if cubin.key in errors}
    uncopied = errors.get(PACKING.key)
    if index is not None and wanted:
        with compiling_at_once():
            failed |= _load(dispatcher, {each: wanted[each] for each in wanted if each not in failed}, index)
            uncopied = uncopied or _load_packing(dispatcher, next(iter(wanted)), index)
    if uncopied is not None:
        failed |= {each: uncopied for each in wanted if each not in failed and _is_copied(each)}
    return Warmup(
        device=spec,
        loaded=index is not None,
        compiled=len(different) - cached - len(errors),
        cached=cached,
        ready=tuple(problem for problem in wanted if problem not in failed),
        cublas=cublas,
        failed=failed,
        seconds=time.monotonic() - began,
        uncopied=uncopied,
    )


def _gpu(dispatcher: Dispatcher, device: int | None) -> tuple[int | None, DeviceSpec]:
    """The GPU at hand, or None and the one that the first bundle was measured on."""
    index = device
    if index is None and driver.devices():
        index = int(driver.cupy().cuda.runtime.getDevice())
    if index is not None:
        spec = driver.device_spec(index)
        if spec.is_hopper:
            return index, spec
    measured_on = [spec_of(bundle.device) for _, bundle in dispatcher.bundles()]
    return None, (measured_on or [H200])[0]


def _choose(
    dispatcher: Dispatcher, problems: Iterable[Problem], spec: DeviceSpec
) -> tuple[dict[Problem, KernelConfig], dict[Problem, str]]:
    """The configs that would run there, and why cuBLAS would for the other problems."""
    wanted, cublas = {}, {}
    for problem in problems:
        choice, unposed = dispatcher.choose_on(problem, spec), unposed_reason(problem)
        if choice.config is None or unposed is not None:
            cublas[problem] = unposed or choice.reason
        else:
            wanted[problem] = choice.config
    return wanted, cublas


def _checked(problems: Iterable[Problem]) -> list[Problem]:
    if isinstance(problems, Problem):
        raise ProblemError(f"problems is one Problem, {problems}: give a list of them, [problem]")
    found = list(dict.fromkeys(problems))
    for problem in found:
        if not isinstance(problem, Problem):
            raise ProblemError(f"problems: {problem!r} is no Problem: write cupygemm.Problem(m, n, k, ...)")
    return found


def _compile(
    compilations: Compilations, cubins: dict[Any, Cubin], threads: int | None, progress: Progress
) -> tuple[int, dict[Any, str]]:
    """Compiles into the disk cache; gives how many were there, and what went wrong with which, by their keys."""
    if not all(cubin.is_cached() for cubin in cubins.values()):
        # Found out before, not after minutes of compiling.
        check_folder(kernel_cache.folder(), kernel_cache.ELSEWHERE)
    found = compile_each(cubins, compilations.compile, threads, progress)
    errors = {key: str(outcome) for key, outcome in found.items() if isinstance(outcome, CompileError)}
    cached = sum(outcome is True for outcome in found.values())
    return cached, errors


def _load(dispatcher: Dispatcher, wanted: dict[Problem, KernelConfig], index: int) -> dict[Problem, str]:
    """Loads what is compiled, and has the dispatcher decide, which loads another where one cannot be used."""
    failed = {}
    for problem, config in wanted.items():
        try:
            dispatcher.kernels.load(problem, config, index)
        except UNUSABLE as error:
            failed[problem] = str(error)
        dispatcher.choose_for(problem, index)
    return failed


def _load_packing(dispatcher: Dispatcher, problem: Problem, index: int) -> str | None:
    """Loads what copies operands, or gives the reason why it cannot be had."""
    try:
        dispatcher.load_packing(problem, index)
    except (CompileError, LaunchError) as error:
        return str(error)
    return None


def _is_copied(problem: Problem) -> bool:
    """Whether operands of a problem are copied for TMA even where their rows lie without gaps."""
    read = gapless(problem)
    return isinstance(read, Gapless) and any(copy is not None for copy in read.copies)
