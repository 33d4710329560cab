"""What works on this machine, and what to do where something does not: `examine`, a list of `Check`.

It runs anywhere. A machine without a GPU is not broken, and what only a GPU needs is then "not here"; the same gap is
a problem on a machine that has one, since it keeps `matmul` from its own kernels.
"""

from __future__ import annotations

import platform
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from cupygemm import __version__, settings
from cupygemm.atomic import check_folder
from cupygemm.bundles.bundle import gpu_words
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import DeviceSpec
from cupygemm.errors import CompileError, SettingError
from cupygemm.kernels import compiler, driver, kernel_source
from cupygemm.machine.bundle_fit import check_bundles, check_forecast
from cupygemm.machine.checks import Check, State
from cupygemm.measuring import telemetry
from cupygemm.problem import Problem
from cupygemm.text import one_line

LOW_SPACE_BYTES = 200 * 1024 * 1024
"""Free space below which a folder is worth a word: some thousand compiled kernels."""
NEWEST_DRIVER = 580
"""First driver of CUDA 13 (CUDA release notes, table of driver versions)."""
SAMPLE = KernelSpec.of(Problem(64, 64, 64)), KernelConfig(64, 16, 64, 2, 1, False, 1, 1, False, 1, 40, 0, 1)
"""What is compiled to see whether compiling works: small, but with TMA, WGMMA and setmaxnreg in it."""

_WHEEL = re.compile(r"cupy(?:-cuda(\d+)x|-rocm-.*)?")


@dataclass(frozen=True)
class _Machine:
    """What the later checks build on.

    Attributes:
        has_driver: whether an NVIDIA driver is loaded.
        cupy: whether there is one CuPy, and it can be imported.
        cuda_major: of the CuPy wheel; None where not known.
    """

    has_driver: bool
    cupy: bool = False
    cuda_major: int | None = None

    @property
    def gap(self) -> State:
        """What a missing piece comes to that own kernels need."""
        return State.PROBLEM if self.has_driver else State.ABSENT


def examine(search_packages: Sequence[str]) -> list[Check]:
    """Looks at everything; takes a second or two, most of it one compilation.

    Args:
        search_packages: what `cupygemm tune` imports.
    """
    has_driver = driver.KERNEL_MODULE.exists() or telemetry.driver_version() is not None
    cupy, machine = _check_cupy(_Machine(has_driver))
    parts: tuple[tuple[str, Callable[[], Iterator[Check]]], ...] = (
        ("cuda.bindings", lambda: _check_bindings(machine)),
        ("NVRTC", lambda: _check_nvrtc(machine)),
        ("driver", lambda: _check_driver(machine)),
        ("GPU", lambda: _check_gpus(machine)),
        ("cache folder", lambda: _check_folder("cache folder", settings.cache_dir(), "CUPYGEMM_CACHE_DIR")),
        ("data folder", lambda: _check_folder("data folder", settings.data_dir(), "CUPYGEMM_DATA_DIR")),
        ("variables", _check_variables),
        ("bundle", lambda: check_bundles(_hoppers(machine))),
        ("forecast", lambda: check_forecast(_hoppers(machine))),
        ("search", lambda: _check_search(search_packages)),
        ("tools", _check_tools),
    )
    return [*_check_package(), cupy, *(check for name, part in parts for check in _guarded(name, part))]


def broken(checks: Sequence[Check]) -> bool:
    """Whether something is broken."""
    return any(check.state is State.PROBLEM for check in checks)


def _guarded(name: str, part: Callable[[], Iterator[Check]]) -> list[Check]:
    """What a part finds; what it dies of is a finding too: half-installed CUDA libraries raise whatever they like."""
    found: list[Check] = []
    try:
        found.extend(part())
    except Exception as error:
        found.append(
            Check(name, State.PROBLEM, f"{type(error).__name__}: {one_line(error)}", "install CUDA's wheels anew")
        )
    return found


def _check_package() -> Iterator[Check]:
    yield Check("Python", State.OK, f"{platform.python_version()}, {platform.system()} {platform.machine()}")
    yield Check("cupygemm", State.OK, f"{__version__}, kernel sources {kernel_source.source_digest()}")


def _check_cupy(machine: _Machine) -> tuple[Check, _Machine]:
    """How CuPy is installed, and the machine with what that says of it."""
    wheels = {}
    for found in metadata.distributions():
        match = _WHEEL.fullmatch((found.name or "").lower())
        if match is not None:
            wheels[match[0]] = (found.version, match[1])
    if not wheels:
        extra = _fitting_extra()
        remedy = f"install the extra {extra} (pip install '.[{extra.split()[0]}]' in a checkout)"
        return Check("CuPy", machine.gap, "not installed", remedy), machine
    names = ", ".join(f"{name} {version}" for name, (version, _) in sorted(wheels.items()))
    if len(wheels) > 1:
        remedy = f"they break each other: pip uninstall {' '.join(sorted(wheels))}, then install the one that fits"
        return Check("CuPy", State.PROBLEM, f"{len(wheels)} wheels: {names}", remedy), machine
    try:
        driver.cupy()
    except Exception as error:  # a wheel without its CUDA libraries dies in many ways
        of_folder = isinstance(error, OSError) and error.filename is not None
        remedy = "name another folder with CUPY_CACHE_DIR" if of_folder else _ANEW
        return Check("CuPy", State.PROBLEM, f"{names}, which cannot be imported: {one_line(error)}", remedy), machine
    ((version, major),) = wheels.values()
    state, remedy = State.OK, ""
    if not version.startswith("14."):
        state, remedy = State.WARNING, "cupygemm is made for CuPy 14"
    return Check("CuPy", state, names, remedy), _Machine(machine.has_driver, True, int(major) if major else None)


_ANEW = "install it anew, with one of the extras cu13, cu12, sysctk13 and sysctk12"


def _fitting_extra() -> str:
    version = telemetry.driver_version()
    if version is None:
        return f"cu13 (driver {NEWEST_DRIVER} or newer) or cu12"
    return "cu13" if int(version.split(".")[0]) >= NEWEST_DRIVER else "cu12"


def _check_bindings(machine: _Machine) -> Iterator[Check]:
    name = "cuda.bindings"
    try:
        version = metadata.version("cuda-bindings")
    except metadata.PackageNotFoundError:
        gap = State.PROBLEM if machine.cupy else machine.gap
        yield Check(name, gap, "not installed", "it comes with the extras cu13 and cu12")
        return
    major = int(version.split(".")[0])
    if machine.cuda_major is not None and major != machine.cuda_major:
        remedy = f"pip install 'cuda-bindings>={machine.cuda_major},<{machine.cuda_major + 1}'"
        yield Check(name, State.PROBLEM, f"{version}, and CuPy is for CUDA {machine.cuda_major}", remedy)
    else:
        yield Check(name, State.OK, version)


def _check_nvrtc(machine: _Machine) -> Iterator[Check]:
    try:
        version = compiler.nvrtc_version()
    except CompileError as error:
        gap = State.PROBLEM if machine.cupy else machine.gap
        remedy = "needed to compile kernels; replaying recorded tables needs none"
        yield Check("NVRTC", gap, one_line(error), remedy)
        return
    yield Check("NVRTC", State.OK, version)
    yield _compile(version)


def _compile(version: str) -> Check:
    """One kernel, past the cache."""
    name, sources = kernel_source.name_expression(*SAMPLE), compiler.sources(*SAMPLE)
    started = time.perf_counter()
    try:
        advisories = compiler.advisories(compiler.compile_program(name, sources).log)
    except CompileError as error:
        return Check("compiling", State.PROBLEM, one_line(error), "install a newer NVRTC, with the extra cu13 or cu12")
    if advisories:
        found = f"NVRTC {version} does not make the kernel that was asked for ({', '.join(advisories)})"
        return Check("compiling", State.PROBLEM, found, "install another NVRTC, with the extra cu13 or cu12")
    return Check("compiling", State.OK, f"a kernel for sm_90a in {time.perf_counter() - started:.1f} s")


def _check_driver(machine: _Machine) -> Iterator[Check]:
    version, newest = telemetry.driver_version(), driver.newest_cuda() if machine.cupy else None
    if version is None and newest is None:
        found = "an NVIDIA driver is loaded, and nothing here can ask it" if machine.has_driver else "no NVIDIA driver"
        yield Check("driver", State.ABSENT, found)
        return
    words = [version or "version unknown", f"runs CUDA up to {newest[0]}.{newest[1]}" if newest else ""]
    found = ", ".join(filter(None, words))
    if newest is not None and machine.cuda_major is not None and newest[0] < machine.cuda_major:
        remedy = f"install driver {NEWEST_DRIVER} or newer, or the extra cu{newest[0]} in place of this CuPy"
        yield Check("driver", State.PROBLEM, f"{found}, and CuPy is for CUDA {machine.cuda_major}", remedy)
    else:
        yield Check("driver", State.OK, found)


def _check_gpus(machine: _Machine) -> Iterator[Check]:
    if not machine.cupy:
        yield Check("GPU", State.ABSENT, "without CuPy no GPU can be asked")
        return
    if not driver.devices():
        if machine.has_driver:
            remedy = "compare nvidia-smi; CUDA_VISIBLE_DEVICES may hide them, a container may need --gpus all"
            yield Check("GPU", State.PROBLEM, "a driver is loaded, and CUDA shows no device", remedy)
        else:
            yield Check("GPU", State.ABSENT, "none: matmul needs one; tune replays recorded tables")
    for index in driver.devices():
        yield from _check_gpu(index)


def _hoppers(machine: _Machine) -> list[DeviceSpec]:
    """The GPUs that the kernels run on; none where CuPy, whose own check has said why, cannot ask."""
    return [driver.device_spec(index) for index in driver.hopper_devices()] if machine.cupy else []


def _check_gpu(index: int) -> Iterator[Check]:
    spec, name = driver.device_spec(index), f"GPU {index}"
    capability = ".".join(map(str, spec.compute_capability))
    found = f"{gpu_words(spec)}, compute capability {capability}"
    if not spec.is_hopper:
        yield Check(name, State.ABSENT, f"{found}: not Hopper (9.0), cuBLAS runs there")
        return
    slice_of = (
        ", a MIG slice: configs measured on a whole GPU run, and others may be faster" if "MIG" in spec.name else ""
    )
    yield Check(name, State.OK, found + slice_of)
    yield _check_clocks(index)


def _check_clocks(index: int) -> Check:
    name, state = f"clocks of GPU {index}", telemetry.condition(index)
    if state.clock_mhz is None:
        return Check(name, State.ABSENT, "NVML, which tells them, is not here", "pip install nvidia-ml-py")
    modes = {"ECC": state.ecc, "persistence": state.persistence}
    words = [f"{state.clock_mhz} of {state.max_clock_mhz} MHz"]
    if state.power_limit_w is not None:
        words.append(f"at most {state.power_limit_w:.0f} W")
    words += [f"{mode} {'on' if on else 'off'}" for mode, on in modes.items() if on is not None]
    found, remedies = ", ".join(words), []
    if state.slowdowns:
        found += f", slowed down by: {', '.join(state.slowdowns)}"
        remedies.append("let it cool or idle before measuring")
    default = state.default_power_limit_w
    if default is not None and state.power_limit_w is not None and state.power_limit_w < default - 1:
        remedies.append(f"its power limit is below the {default:.0f} W it is shipped with: times will be longer")
    return Check(name, State.WARNING if remedies else State.OK, found, "; ".join(remedies))


def _check_folder(name: str, folder: Path, variable: str) -> Iterator[Check]:
    try:
        check_folder(folder)
    except OSError as error:
        found = f"{folder} cannot be written: {error.strerror}"
        yield Check(name, State.PROBLEM, found, f"name another with {variable}")
        return
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    low = free < LOW_SPACE_BYTES
    remedy = f"make room, or name another with {variable}" if low else ""
    yield Check(name, State.WARNING if low else State.OK, f"{folder}, {free / 1e9:.1f} GB free", remedy)


def _check_variables() -> Iterator[Check]:
    """What no other check looks at: folders, bundles and the forecast have their own."""
    for variable, meant in settings.unknown_variables().items():
        remedy = "unset it: docs/environment.md lists those that are" if meant is None else f"write {meant}"
        yield Check("variables", State.WARNING, f"{variable} is set, and nothing reads it", remedy)
    try:
        waits = not settings.compiles_in_background()
    except SettingError as error:
        yield Check("first calls", State.PROBLEM, one_line(error), "set CUPYGEMM_COMPILE to one of these, or unset it")
        return
    yield Check("first calls", State.OK, "wait for their kernels" if waits else "run cuBLAS while kernels are compiled")


def _check_search(packages: Sequence[str]) -> Iterator[Check]:
    missing = [name for name in packages if util.find_spec(name) is None]
    if missing:
        remedy = "to tune on a GPU install the extra search (pip install '.[search]' in a checkout)"
        yield Check("search", State.ABSENT, f"{', '.join(missing)} not installed", remedy)
    else:
        yield Check("search", State.OK, "cupygemm tune can run")


def _check_tools() -> Iterator[Check]:
    for tool, use in (("compute-sanitizer", "looks for memory errors"), ("ncu", "profiles kernels")):
        path = shutil.which(tool)
        yield Check(
            tool, State.OK if path else State.ABSENT, path or f"not on the path; it {use}, nothing else needs it"
        )
