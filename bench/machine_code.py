"""What kernels come to: a digest of the machine code of each problem and config on standard input, a JSON line each.

    PYTHONPATH=CHECKOUT python bench/machine_code.py < pairs.jsonl

It imports nothing but cupygemm, so that it can be run with the package of another commit (bench/restamp.py).
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

CODE = ".text."
"""What the names of sections with instructions begin with."""


def code_digest(cubin: bytes) -> str:
    """SHA-256 over the instructions of an ELF file of 64 bits, and what its sections say of registers."""
    digest = hashlib.sha256()
    for name, info, code in _sections(cubin):
        if name.startswith(CODE):
            digest.update(struct.pack("<IQ", info, len(code)) + code)
    return digest.hexdigest()


def _sections(elf: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Name, sh_info and contents of each section (System V ABI, "Sections")."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, of_names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * size) for i in range(count)]
    names = headers[of_names][4]
    for at, kind, _, _, offset, length, _, info, _, _ in headers:
        end = elf.index(b"\0", names + at)
        nothing = 8  # SHT_NOBITS
        yield elf[names + at : end].decode(), info, b"" if kind == nothing else elf[offset : offset + length]


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
