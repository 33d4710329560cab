"""What kernels come to: a digest of the machine code of each problem and config on standard input, a JSON line each.

    python -m bench.machine_code < pairs.jsonl

It imports nothing but cupygemm: with PYTHONPATH it says what the package of another commit makes (bench/restamp.py).
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.kernels.compiler import compile_kernel, source_digest
from cupygemm.problem import Problem

NOBITS = 8
"""The type of sections that take no place in the file."""
LOADED = (".text", ".nv.info", ".nv.constant0", ".nv.constant2", ".nv.constant3", ".rela.text")
"""What the names of sections begin with that make a kernel: instructions, constants, and in .nv.info registers, stack,
threads and clusters. Bank 4 has addresses of globals, of which ours are constants that are folded into instructions."""
WITH_SYMBOL = {0x0A, 0x11, 0x12, 0x2F}
"""Attributes of .nv.info that begin with the number of a symbol (PARAM_CBANK, FRAME_SIZE, MIN_STACK_SIZE, REGCOUNT)."""


def code_digest(cubin: bytes) -> str:
    """SHA-256 over what makes the kernel of an ELF file of 64 bits with one, but for its name and symbols' numbers."""
    digest = hashlib.sha256()
    for name, contents in sorted(_sections(cubin)):
        kind = next((each for each in LOADED if name.startswith(each)), None)
        if kind is not None:
            told = b"".join(_attributes(contents)) if kind == ".nv.info" else contents
            digest.update(kind.encode() + struct.pack("<Q", len(told)) + told)
    return digest.hexdigest()


def _attributes(contents: bytes) -> Iterator[bytes]:
    """Each attribute of a section .nv.info without a symbol's number: format, attribute, two bytes, so many more."""
    at = 0
    while at < len(contents):
        form, attribute, value = struct.unpack_from("<BBH", contents, at)
        longer = value if form == 4 else 0
        skipped = 4 if attribute in WITH_SYMBOL and longer else 0
        yield contents[at : at + 4] + contents[at + 4 + skipped : at + 4 + longer]
        at += 4 + longer


def _sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and contents of each section (System V ABI, "Sections")."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, of_names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * size) for i in range(count)]
    names = headers[of_names][4]
    for at, kind, _, _, offset, length, _, _, _, _ in headers:
        end = elf.index(b"\0", names + at)
        yield elf[names + at : end].decode(), b"" if kind == NOBITS else elf[offset : offset + length]


def known(config: dict[str, Any]) -> KernelConfig | None:
    """The config as these sources have it; None where it says something that they do not know."""
    names = {field.name for field in fields(KernelConfig)}
    if any(value for name, value in config.items() if name not in names):
        return None
    return KernelConfig.from_dict({name: value for name, value in config.items() if name in names})


def main() -> None:
    """Writes a line a line: the digests of the sources and of the code, or null."""
    for line in sys.stdin:
        pair = json.loads(line)
        config = known(pair["config"])
        found = None
        if config is not None:
            made = compile_kernel(KernelSpec.of(Problem.from_dict(pair["problem"])), config)
            found = {"sources": source_digest(config), "code": code_digest(made.cubin.read_bytes())}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
