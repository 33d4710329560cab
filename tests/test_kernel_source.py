"""The generated source: literals, entry names, the WGMMA operand list, the digest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields

import pytest

from cupygemm.config import STRUCT_FIELDS, KernelConfig, KernelSpec
from cupygemm.kernels import kernel_source
from cupygemm.problem import Problem

CONFIG = KernelConfig(128, 96, 64, 4, 2, False, 1, 1, True, 8, 40, 1, 1)
SPEC = KernelSpec.of(Problem(64, 64, 64, a_dtype="bfloat16", b_dtype="bfloat16", out_dtype="float32"))


def struct_fields(name: str) -> list[str]:
    """Field names of a struct in config.cuh, in order."""
    text = kernel_source.cuda_sources()["config.cuh"]
    body = re.search(rf"struct {name} \{{(.*?)\n(?:\}}|\n)", text, re.DOTALL)
    assert body is not None
    return re.findall(r"^\s+\w+ (\w+);", body[1], re.MULTILINE)


def test_structs_have_the_same_fields_in_the_same_order() -> None:
    assert struct_fields("KernelSpec") == [field.name for field in fields(KernelSpec)]
    assert struct_fields("KernelConfig") == list(STRUCT_FIELDS)


def test_name_expression_picks_the_entry() -> None:
    assert kernel_source.name_expression(SPEC, CONFIG).startswith("gemm_kernel<KernelSpec{.a_dtype = DType::bfloat16")
    cluster = kernel_source.name_expression(SPEC, CONFIG.swapped(cluster_m=2))
    assert cluster.startswith("gemm_cluster_kernel<")
    assert ".ping_pong = false" in cluster
    assert "raster_along_n" not in cluster


def test_the_entries_are_those_of_the_pages() -> None:
    pages = [kernel_source.cuda_sources()[page] for page in (kernel_source.PAGE, kernel_source.CP_ASYNC_PAGE)]
    defined = [name for text in pages for name in re.findall(r"(\w+)\(const __grid_constant__ CUtensorMap map_a", text)]
    assert sorted(defined) == sorted(kernel_source.ENTRIES)
    changes = ({"cluster_k": k, "cp_async_stages": copied} for k in (1, 2) for copied in (0, 1))
    assert {kernel_source.entry_of(CONFIG.swapped(**each)) for each in changes} == set(kernel_source.ENTRIES)


def test_wgmma_header_lists_every_accumulator_once() -> None:
    header = kernel_source.wgmma_header(SPEC, CONFIG)
    assert "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16" in header
    assert re.findall(r'"\+f"\(d\[(\d+)\]\)', header) == [str(i) for i in range(48)]
    # 48 accumulators, two descriptors, the predicate and two transpose bits.
    assert max(int(i) for i in re.findall(r"%(\d+)", header)) == 52


def test_sources_hold_every_header_that_is_included() -> None:
    sources = kernel_source.cuda_sources()
    included = {name for text in sources.values() for name in re.findall(r'#include "([^"]+)"', text)}
    assert included - {kernel_source.WGMMA_HEADER} <= set(sources)
    assert re.fullmatch(r"[0-9a-f]{16}", kernel_source.source_digest())


def test_the_digest_sees_code_and_not_comments() -> None:
    sources = {"a.cuh": "int x = 1;  // one\n\n  int y;\n", "b.cuh": "int z;\n"}
    digest = kernel_source.digest_of(sources)
    assert digest == kernel_source.digest_of({**sources, "a.cuh": "// two\nint x = 1;\nint y; // three\n"})
    assert digest != kernel_source.digest_of({**sources, "a.cuh": "int x = 2;\nint y;\n"})
    assert digest != kernel_source.digest_of({"b.cuh": sources["a.cuh"], "a.cuh": sources["b.cuh"]})
    assert digest != kernel_source.digest_of({"a.cuh": sources["a.cuh"]})


def test_comments_are_stripped_from_nothing_else() -> None:
    for name, text in kernel_source.cuda_sources().items():
        assert "/*" not in text, name
        assert "//" not in "".join(re.findall(r'"[^"\n]*"', text)), name


def test_a_page_is_what_it_includes() -> None:
    pages = {name: set(kernel_source.page_sources(name)) for name in ("gemm.cuh", "gemm_cp_async.cuh", "pack.cuh")}
    assert {"gemm.cuh", "raster.cuh", "ptx/wgmma.cuh"} <= pages["gemm.cuh"]
    assert pages["pack.cuh"] == {"pack.cuh", "raster.cuh", "ptx/types.cuh"}
    # Every header is of a page.
    assert set(kernel_source.cuda_sources()) == set.union(*pages.values())
    assert kernel_source.page_digest("pack.cuh") != kernel_source.page_digest("gemm.cuh")


@pytest.fixture
def uncached() -> Iterator[None]:
    _forget()
    yield
    _forget()


def _forget() -> None:
    kernel_source.page_sources.cache_clear()
    kernel_source._digest_with_generated.cache_clear()


COPYING = CONFIG.swapped(cp_async_stages=1)


@pytest.mark.parametrize(
    ("changed", "config", "matters"),
    [
        ("pack.cuh", None, False),
        ("gemm.cuh", None, True),
        ("ptx/tma.cuh", None, True),
        ("gemm_cp_async.cuh", CONFIG, False),
        ("gemm_cp_async.cuh", COPYING, True),
        ("gemm.cuh", COPYING, True),
        ("pack.cuh", COPYING, False),
    ],
)
def test_a_digest_is_of_the_config_s_own_page(
    changed: str, config: KernelConfig | None, matters: bool, uncached: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, sources = kernel_source.source_digest(config), kernel_source.cuda_sources()
    _forget()
    monkeypatch.setattr(kernel_source, "cuda_sources", lambda: {**sources, changed: f"{sources[changed]}int x;\n"})
    assert (kernel_source.source_digest(config) != before) is matters
