"""From a spec and a config to a cubin: NVRTC for sm_90a, which needs no GPU, and a cache shared by all processes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from cupygemm.atomic import write_atomically
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.errors import CompileError, not_installed
from cupygemm.kernels import kernel_cache, kernel_source
from cupygemm.kernels.kernel_source import source_digest

__all__ = [
    "CompiledKernel",
    "CompiledPage",
    "compile_kernel",
    "compile_page",
    "compile_program",
    "is_cached",
    "is_page_cached",
    "nvrtc_version",
    "nvrtc_version_if_any",
    "source_digest",
]

OPTIONS = ("-arch=sm_90a", "-std=c++20", "-default-device", "--ptxas-options=-v")
"""NVRTC's options. A cubin for sm_90a, not PTX: an NVRTC newer than the driver makes PTX that the driver refuses."""

NO_CACHE, FIRST_WITH_CACHE = "--no-cache", (12, 9)
"""Where there is a driver, NVRTC 12.9 and later keeps what it made in CUDA's cache: what is found there has no log."""

OLDEST_NVRTC = (12, 4)
"""The oldest that the tests compile with."""

_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill (?:stores|loads)")
_ADVISORY = re.compile(r"\b(C7[56]\d\d)\b")


@dataclass(frozen=True)
class CompiledKernel:
    """A cubin on disk and what ptxas said of it.

    Attributes:
        cubin: the file, in the cache.
        lowered_name: the mangled name of its entry.
        registers: per thread at launch.
        spill_bytes: spill stores plus spill loads of one thread, bytes.
        advisories: codes C75xx: WGMMAs serialised, setmaxnreg ignored. Not empty means: not the kernel that was asked
            for.
    """

    spec: KernelSpec
    config: KernelConfig
    cubin: Path
    lowered_name: str
    registers: int
    spill_bytes: int
    advisories: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """What NVRTC made of one translation unit."""

    cubin: bytes
    lowered_name: str
    log: str


@dataclass(frozen=True)
class CompiledPage:
    """A cubin in the cache.

    Attributes:
        cubin: the file.
        lowered_name: the mangled name of its entry.
        log: what NVRTC and ptxas said.
    """

    cubin: Path
    lowered_name: str
    log: str


def compile_kernel(spec: KernelSpec, config: KernelConfig) -> CompiledKernel:
    """The kernel for `spec` and `config`, from the cache or compiled into it.

    Safe under many processes at once: entries are written under a temporary name and renamed, and two processes that
    compile the same kernel write the same entry.

    Raises:
        CompileError: NVRTC is missing or refused the source (`log` has its words), or the cache cannot be written.
    """

    def program() -> Program:
        program = kernel_source.program_of(kernel_source.page_of(config))
        return compile_program(kernel_source.name_expression(spec, config), sources(spec, config), program)

    return _describe(_cached(cache_key(spec, config), program), spec, config)


def compile_page(page: str, entry: str) -> CompiledPage:
    """The kernel of a page that has but one, and no template parameters, from the cache or compiled into it.

    Args:
        page: of `cupygemm.cuda_src`, such as "pack.cuh".
        entry: the kernel's name there.

    Raises:
        CompileError: as `compile_kernel`.
    """

    def program() -> Program:
        return compile_program(entry, kernel_source.page_sources(page), kernel_source.program_of(page))

    return _cached(_key_of(kernel_source.page_digest(page), entry), program)


def _cached(key: str, compiled: Callable[[], Program]) -> CompiledPage:
    """An entry of the cache; what `compiled` gives goes there first where it is not there."""
    entry = kernel_cache.folder() / key
    found = _read_entry(entry)
    if found is not None:
        return found
    program = compiled()
    description = {
        "lowered_name": program.lowered_name,
        "cubin_sha256": hashlib.sha256(program.cubin).hexdigest(),
        "log": program.log,
    }
    try:
        # The description is renamed into place last: where it exists, the cubin that it describes does too.
        write_atomically(entry.with_suffix(".cubin"), program.cubin)
        write_atomically(entry.with_suffix(".json"), json.dumps(description, indent=1).encode())
    except OSError as error:
        raise CompileError(f"the cubin cache cannot be written: {error}; CUPYGEMM_CACHE_DIR names another") from error
    return CompiledPage(entry.with_suffix(".cubin"), program.lowered_name, program.log)


def sources(spec: KernelSpec, config: KernelConfig) -> dict[str, str]:
    """All headers that the kernel includes, the generated one among them, by name."""
    generated = {kernel_source.WGMMA_HEADER: kernel_source.wgmma_header(spec, config)}
    return {**kernel_source.page_sources(kernel_source.page_of(config)), **generated}


def cache_key(spec: KernelSpec, config: KernelConfig) -> str:
    """Everything that decides the cubin, as 32 hex digits."""
    return _key_of(source_digest(config), kernel_source.name_expression(spec, config))


def _key_of(digest: str, name_expression: str) -> str:
    parts = (digest, name_expression, nvrtc_version(), *OPTIONS)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def nvrtc_version() -> str:
    """ "major.minor" of the NVRTC library.

    Raises:
        CompileError: NVRTC cannot be loaded.
    """
    nvrtc = _nvrtc()
    return "{}.{}".format(*_checked(nvrtc, nvrtc.nvrtcVersion()))


def nvrtc_version_if_any() -> str | None:
    """The same; None where NVRTC cannot be loaded."""
    try:
        return nvrtc_version()
    except CompileError:
        return None


def is_cached(spec: KernelSpec, config: KernelConfig) -> bool:
    """Whether `compile_kernel` finds the kernel in the cache; one that is damaged there counts too.

    Raises:
        CompileError: NVRTC, by whose version kernels are kept, cannot be loaded.
    """
    return (kernel_cache.folder() / cache_key(spec, config)).with_suffix(".json").exists()


def is_page_cached(page: str, entry: str) -> bool:
    """Whether `compile_page` finds a page's kernel in the cache, likewise.

    Raises:
        CompileError: as `is_cached`.
    """
    key = _key_of(kernel_source.page_digest(page), entry)
    return (kernel_cache.folder() / key).with_suffix(".json").exists()


def compile_program(
    name_expression: str, headers: Mapping[str, str], program: str = kernel_source.program_of(kernel_source.PAGE)
) -> Program:
    """Compiles one translation unit whose includes are all in `headers`; no file is read.

    Raises:
        CompileError: NVRTC is missing, too old or refused the source; `log` has its words.
    """
    nvrtc = _nvrtc()
    version = tuple(map(int, nvrtc_version().split(".")))
    if version < OLDEST_NVRTC:
        raise CompileError(_too_old(nvrtc_version()))
    texts = [text.encode() for text in headers.values()]
    names = [name.encode() for name in headers]
    handle = _checked(nvrtc, nvrtc.nvrtcCreateProgram(program.encode(), b"gemm.cu", len(texts), texts, names))[0]
    try:
        _checked(nvrtc, nvrtc.nvrtcAddNameExpression(handle, name_expression.encode()))
        options = [option.encode() for option in (*OPTIONS, *[NO_CACHE] * (version >= FIRST_WITH_CACHE))]
        (status,) = nvrtc.nvrtcCompileProgram(handle, len(options), options)
        log = _text(nvrtc, handle, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC refused the kernel: {_first_error(log)}", log)
        if not _REGISTERS.search(log):
            raise CompileError(f"NVRTC {nvrtc_version()} does not say how many registers the kernel has", log)
        lowered = _checked(nvrtc, nvrtc.nvrtcGetLoweredName(handle, name_expression.encode()))[0].decode()
        cubin = _text(nvrtc, handle, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    finally:
        nvrtc.nvrtcDestroyProgram(handle)
    return Program(cubin, lowered, log.rstrip("\0"))


def _too_old(version: str) -> str:
    oldest = "{}.{}".format(*OLDEST_NVRTC)
    return (
        f"NVRTC {version} is too old: what it makes of the kernels was never looked at; install {oldest} "
        f"or newer, which the extra `cu12` does (pip install 'nvidia-cuda-nvrtc-cu12>={oldest}')"
    )


@cache
def _nvrtc() -> ModuleType:
    try:
        # Loaded here because everything but compiling works without a CUDA wheel.
        nvrtc = import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        raise CompileError(not_installed("cuda-bindings (for NVRTC)", "cu13")) from error
    try:
        nvrtc.nvrtcVersion()  # the first call is what loads the library
    except RuntimeError as error:
        raise CompileError(
            not_installed("the library of NVRTC, without which cuda-bindings is of no use,", "cu13")
        ) from error
    return nvrtc


def _checked(nvrtc: ModuleType, result: tuple[Any, ...]) -> tuple[Any, ...]:
    status, *values = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC: {status.name}")
    return tuple(values)


def _text(nvrtc: ModuleType, handle: Any, size_of: Any, read: Any) -> bytes:
    (size,) = _checked(nvrtc, size_of(handle))
    buffer = bytearray(b" " * size)
    _checked(nvrtc, read(handle, buffer))
    return bytes(buffer)


def _first_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if "error" in line.lower()]
    return lines[0] if lines else "no message in its log"


def _read_entry(entry: Path) -> CompiledPage | None:
    try:
        description = json.loads(entry.with_suffix(".json").read_bytes())
        cubin = entry.with_suffix(".cubin").read_bytes()
        if hashlib.sha256(cubin).hexdigest() != description["cubin_sha256"] or not _REGISTERS.search(
            description["log"]
        ):
            return None
        return CompiledPage(entry.with_suffix(".cubin"), description["lowered_name"], description["log"])
    except (OSError, ValueError, KeyError, TypeError):
        # Missing, cut short or not ours: compiled anew and replaced.
        return None


def _describe(compiled: CompiledPage, spec: KernelSpec, config: KernelConfig) -> CompiledKernel:
    log = compiled.log
    registers = _REGISTERS.search(log)
    return CompiledKernel(
        spec=spec,
        config=config,
        cubin=compiled.cubin,
        lowered_name=compiled.lowered_name,
        registers=int(registers[1]) if registers else 0,
        spill_bytes=sum(map(int, _SPILLS.findall(log))),
        advisories=advisories(log),
    )


def advisories(log: str) -> tuple[str, ...]:
    """The codes C75xx and C76xx in a compile log, sorted: ptxas serialised WGMMAs or ignored setmaxnreg."""
    return tuple(sorted(set(_ADVISORY.findall(log))))
