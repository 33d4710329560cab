"""From a config that was chosen to a kernel that can be launched: compiled, now or in the background, and loaded once.

What goes on in the background is compiling alone, for the disk cache: see `compiling`. The call that finds the kernel
compiled loads it, which takes milliseconds.
"""

from __future__ import annotations

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.errors import CaptureError, CompileError, ConfigError, CupygemmError, LaunchError
from cupygemm.kernels import compiler, driver, pack_kernel
from cupygemm.kernels.capture import is_capturing
from cupygemm.kernels.compiling import PACKING, Compilations, Cubin, cubin_of
from cupygemm.kernels.kernel_plan import LoadedKernel
from cupygemm.legality import illegal_reason
from cupygemm.problem import Problem


class Kernels:
    """The kernels that are loaded, by spec, config and device, and those that are on their way. Safe from any thread.

    What cannot be compiled or loaded is remembered too, so that a broken config is tried once.

    Attributes:
        compilations: those that are being compiled.
    """

    def __init__(self) -> None:
        """Nothing is compiled or loaded yet."""
        self.compilations = Compilations()
        self._loaded: dict[tuple[KernelSpec, KernelConfig, int], LoadedKernel | CupygemmError] = {}

    def load(self, problem: Problem, config: KernelConfig, index: int, in_background: bool = False) -> LoadedKernel:
        """The kernel for a problem on a CUDA device; compiled and loaded if it is not.

        Args:
            in_background: compile in the background what is not in the disk cache.

        Raises:
            CaptureError: it is not loaded, and a CUDA graph is being captured.
            StillCompiling: it is being compiled in the background.
            ConfigError, CompileError, LaunchError: what stands in its way.
        """
        spec = KernelSpec.of(problem)
        key = (spec, config, index)
        kernel = self._loaded.get(key)
        if kernel is None:
            cubin = cubin_of(spec, config)
            if is_capturing():
                raise CaptureError(self._capture_words(problem, cubin, "operands of this shape"))
            if in_background and illegal_reason(config, spec, driver.device_spec(index)) is None:
                error = self.compilations.begin_or_raise(cubin, problem)
                if error is not None:
                    self._loaded.setdefault(key, error)
            with self.compilations.lock_of(cubin):
                kernel = self._loaded.get(key)
                if kernel is None:
                    kernel = self._loaded[key] = _try_loading(spec, config, index)
        if isinstance(kernel, CupygemmError):
            # Else the traceback of one error would grow with every call.
            raise kernel.with_traceback(None)
        return kernel

    def load_packing(self, problem: Problem, index: int, in_background: bool = False) -> None:
        """Sees to it that the kernel which copies operands for TMA is loaded on a CUDA device.

        Args:
            problem: for which.
            index, in_background: as of `load`.

        Raises:
            CaptureError, StillCompiling, CompileError, LaunchError: as `load`.
        """
        if not pack_kernel.is_loaded(index):
            if is_capturing():
                raise CaptureError(self._capture_words(problem, PACKING, "such operands"))
            error = self.compilations.begin_or_raise(PACKING, problem) if in_background else None
            if error is not None:
                pack_kernel.give_up(index, error)
        with self.compilations.lock_of(PACKING):
            pack_kernel.pack_kernel(index)

    def _capture_words(self, problem: Problem, cubin: Cubin, operands: str) -> str:
        under_way = self.compilations.is_under_way(cubin)
        state = "is still being compiled in the background" if under_way else "is not loaded"
        return (
            f"{problem}: {cubin.name} {state}, and a CUDA graph is being captured: before the capture call matmul once "
            f"with {operands}, or cupygemm.plan or cupygemm.warmup, which wait for it"
        )


def _try_loading(spec: KernelSpec, config: KernelConfig, index: int) -> LoadedKernel | CupygemmError:
    """The kernel, or what stands in its way."""
    reason = illegal_reason(config, spec, driver.device_spec(index))
    if reason is not None:
        return ConfigError(reason)
    try:
        return LoadedKernel(compiler.compile_kernel(spec, config), index)
    except (CompileError, ConfigError, LaunchError) as error:
        return error
