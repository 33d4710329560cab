"""The page that copies operands, with NVRTC and no GPU."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from cupygemm.errors import CompileError
from cupygemm.kernels import compiler, kernel_source, pack_kernel
from cupygemm.views import packing

pytestmark = pytest.mark.nvrtc

REGISTERS_OF_SM = 65536


def test_the_page_compiles_without_spills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path))
    compiled = compiler.compile_page(pack_kernel.PAGE, pack_kernel.ENTRY)
    assert compiled.cubin.read_bytes()[:4] == b"\x7fELF"
    assert "0 bytes spill stores, 0 bytes spill loads" in compiled.log
    found = re.search(r"Used (\d+) registers", compiled.log)
    assert found is not None
    # What the number of chunks of a thread is chosen for.
    assert REGISTERS_OF_SM // (int(found[1]) * pack_kernel.THREADS) >= packing.BLOCKS_PER_SM

    def refuse(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiler, "compile_program", refuse)
    assert compiler.compile_page(pack_kernel.PAGE, pack_kernel.ENTRY) == compiled


@pytest.mark.parametrize(("struct", "fields"), [("PackedOperand", 12), ("PackArguments", 2)])
def test_structs_are_as_the_page_has_them(struct: str, fields: int) -> None:
    layout = getattr(pack_kernel, struct)
    assert len(layout._fields_) == fields
    offsets = "\n".join(
        f'static_assert(__INTADDR__(&(({struct}*)0)->{name}) == {getattr(layout, name).offset}, "{name}");'
        for name, _ in layout._fields_
    )
    size = f'static_assert(sizeof({struct}) == {ctypes.sizeof(layout)}, "size");'
    headers = kernel_source.page_sources(pack_kernel.PAGE)
    program = f'#include "{pack_kernel.PAGE}"\n{offsets}\n{size}\n'
    compiler.compile_program(pack_kernel.ENTRY, headers, program)
    with pytest.raises(CompileError, match="static assertion"):
        compiler.compile_program(pack_kernel.ENTRY, headers, program.replace("== 0,", "== 8,"))
