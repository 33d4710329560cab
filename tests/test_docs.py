"""The documents are true: what they name exists, what is generated is current, and figures that can be computed are."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from cupygemm.cli import main
from cupygemm.commands import command_help
from cupygemm.config import (
    KernelConfig,
    KernelSpec,
    operand_bytes,
    shared_bytes,
    shared_storage_bytes,
    store_columns,
)
from cupygemm.device import H200
from cupygemm.dtypes import DTYPES
from cupygemm.measuring import verify
from cupygemm.problem import Problem
from cupygemm.search.spaces.space import FIELD_NAMES

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
SOURCE_FOLDERS = ("bench", "cuda_src", "cupygemm", "search", "tests")
SOURCE_FILES = ("Makefile", "pyproject.toml")

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PLACEHOLDER = re.compile(r"NAME|<|…|\s|^-|^~|://")
PATH = re.compile(r"[a-z_.][\w.*-]*(?:/[\w.*-]+)*/?")
FILE = re.compile(r"[\w.*-]+\.(?:py|cuh|md|json|sh|toml)")
CALL = re.compile(r"(?:\w+(?:\.|::))*(\w+)\(\)")
IDENTIFIER = re.compile(r"(?:\w+(?:\.|::))*([A-Za-z_]\w*)")
OF_OUR_OWN = ("CONTRIBUTING.md", "architecture.md", "kernel.md", "measuring.md")
"""Documents whose every identifier is one of the sources; others quote the article or name what is not built."""

each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def spans(path: Path) -> list[str]:
    """What stands in backticks, outside fenced code."""
    return re.findall(r"`([^`\n]+)`", FENCE.sub("", path.read_text(encoding="utf-8")))


@cache
def sources() -> dict[Path, str]:
    found = [
        path for folder in SOURCE_FOLDERS for path in (ROOT / folder).rglob("*.*") if "__pycache__" not in path.parts
    ]
    found += [ROOT / name for name in SOURCE_FILES]
    return {
        path: path.read_text(encoding="utf-8") for path in found if path.suffix in (".py", ".cuh", ".sh", ".toml", "")
    }


@cache
def words() -> frozenset[str]:
    return frozenset(
        word for path, text in sources().items() if path != Path(__file__) for word in re.findall(r"\w+", text)
    )


@cache
def file_names() -> frozenset[str]:
    tracked = [*ROOT.glob("*"), *(path for folder in (*SOURCE_FOLDERS, "docs") for path in (ROOT / folder).rglob("*"))]
    return frozenset(path.name for path in tracked)


@cache
def defined() -> frozenset[str]:
    """Functions and classes: of Python by their definition, of CUDA by a name before a parenthesis."""
    python = (re.findall(r"(?:def|class) (\w+)", text) for path, text in sources().items() if path.suffix == ".py")
    cuda = (re.findall(r"(\w+)\(", text) for path, text in sources().items() if path.suffix == ".cuh")
    return frozenset(name for found in (*python, *cuda) for name in found)


def is_there(path: Path, span: str) -> bool:
    roots = (ROOT, ROOT / "cuda_src", path.parent)
    return any(list(root.glob(span.rstrip("/"))) for root in roots)


@each_document
def test_files_that_are_named_exist(path):
    named = [span for span in spans(path) if not PLACEHOLDER.search(span)]
    folders = [span for span in named if "/" in span and PATH.fullmatch(span)]
    files = [span for span in named if FILE.fullmatch(span)]
    missing = [span for span in folders if not is_there(path, span)]
    missing += [span for span in files if "*" not in span and span not in file_names()]
    assert missing == []


@each_document
def test_functions_that_are_named_exist(path):
    named = [found for span in spans(path) if (found := CALL.fullmatch(span))]
    assert [found[0] for found in named if found[1] not in defined()] == []


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path.name in OF_OUR_OWN], ids=lambda path: path.name)
def test_identifiers_are_of_the_sources(path):
    named = {found[0]: found[1] for span in spans(path) if (found := IDENTIFIER.fullmatch(span)) and "NAME" not in span}
    assert named
    assert [whole for whole, last in named.items() if last not in words() and whole not in file_names()] == []


def slugs(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_document
def test_links_lead_to_headings(path):
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", path.read_text(encoding="utf-8"))
    targets = [(path.parent / file if file else path, heading) for file, heading in links]
    assert [(str(file), heading) for file, heading in targets if heading not in slugs(file)] == []


def test_python_in_documents_compiles():
    blocks = [(path, code) for path in DOCUMENTS for kind, code in FENCE.findall(path.read_text()) if kind == "python"]
    assert blocks
    for path, code in blocks:
        compile(code, str(path), "exec")


@each_document
def test_generated_blocks_are_current(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(main, ["report", "--check", str(path.relative_to(ROOT))])
    assert done.exit_code == 0, done.output


def test_the_kernel_page_has_a_row_for_every_knob():
    section = read("docs/kernel.md").partition("## Every knob\n")[2].partition("\n### ")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == FIELD_NAMES


def test_the_kernel_page_shows_shared_memory_as_it_is():
    drawing = next(code for _, code in FENCE.findall(read("docs/kernel.md")) if code.startswith("offset"))
    rows = re.findall(r"^ *([\d,]+) +([\d,]+) +(\w+)(?:\[(\d+)\])? ", drawing, re.MULTILINE)
    shown = {name: (number(offset), number(size)) for offset, size, name, _ in rows}
    config = KernelConfig(128, 256, 64, 4, 2, False, 1, 1, True, 16, 40, 0, 2)
    spec = KernelSpec.of(Problem(4096, 4096, 4096))
    buffer = 64 * store_columns(config, spec) * 2
    sizes = {
        "a": config.stages * operand_bytes(config.block_m, config.block_k, spec.a_major, spec.a_dtype),
        "b": config.stages * operand_bytes(config.block_n, config.block_k, spec.b_major, spec.b_dtype),
        "store": config.consumers * config.store_stages * buffer,
        "full": 8 * config.stages,
        "empty": 8 * config.stages,
        "turn": 8 * config.consumers,
        "sums_full": 8 * config.consumers,
        "sums_empty": 8 * config.consumers,
    }
    offset, wanted = 0, {}
    for name, size in sizes.items():
        wanted[name] = (offset, size)
        offset += size
    assert shown == wanted
    totals = [offset, shared_storage_bytes(config, spec), shared_bytes(config, spec), H200.shared_bytes]
    assert list(map(number, re.findall(r"\d+,\d+", drawing.splitlines()[-1]))) == totals


def number(text: str) -> int:
    return int(text.replace(",", ""))


def short_sums(k: int, kind: str) -> tuple[float, float, float, float]:
    """Relative error of fp32 and of fp16 sums, the bound, and fp16's worst element over its bound."""
    problem = Problem(256, 256, k)
    operands = verify.draw_operands(np.random.default_rng(0), problem, kind)
    a, b, reference = operands.a, operands.b, verify.Reference.of(operands, problem)
    verdicts, depth = [], DTYPES[problem.a_dtype].mma_k
    for dtype in (np.float32, np.float16):
        total = np.zeros((256, 256), dtype)
        for first in range(0, k, depth):
            part = slice(first, first + depth)
            total = (total + a[:, part].astype(np.float32) @ b[part].astype(np.float32)).astype(dtype)
        verdicts.append(verify.check(total.astype(np.float16), reference))
    full, short = verdicts
    return full.error, short.error, short.frobenius_bound, short.worst_element


def test_the_measuring_page_says_what_short_sums_do():
    rows = re.findall(r"^\| (\d+) \| (zero|positive) mean \|(.*)\|$", read("docs/measuring.md"), re.MULTILINE)
    assert len(rows) == 4
    for k, kind, figures in rows:
        shown = [float(figure) for figure in figures.split("|")]
        assert shown == pytest.approx(short_sums(int(k), f"{kind}_mean"), rel=0.1)


def test_the_command_page_has_a_section_for_every_command():
    text = read("docs/cli.md")
    assert sorted(re.findall(r"^## cupygemm (.*)$", text, re.MULTILINE)) == sorted(command_help.paths(main))
    for path in command_help.paths(main):
        section = text.partition(f"## cupygemm {path}\n")[2].partition("\n## ")[0]
        assert f"\n<!-- help:{path} -->\n" in section
        assert f"\ncupygemm {path}" in section


def examples(path: Path) -> list[str]:
    shell = [code for kind, code in FENCE.findall(path.read_text(encoding="utf-8")) if kind == "sh"]
    joined = [line for code in shell for line in code.replace("\\\n", " ").splitlines()]
    return [line for line in joined if line.startswith("cupygemm ")]


@each_document
def test_examples_of_commands_are_read(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    for example in examples(path):
        group, arguments = main, shlex.split(example, comments=True)[1:]
        while isinstance(command := group.commands[arguments.pop(0)], click.Group):
            group = command
        assert command.make_context(command.name, arguments, parent=click.Context(main)) is not None
