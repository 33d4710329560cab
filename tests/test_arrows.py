"""Who may import whom, and what may be imported late: the arrows of docs/architecture.md, read from the source.

tests/arrows.py is the drawing as data. A module may import whatever its arrows lead to, near or far; a module without a
line there, or a line without a module, fails.
"""

from __future__ import annotations

import ast
import graphlib
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.arrows import ARROWS

PACKAGE = Path(__file__).parent.parent / "cupygemm"
ARCHITECTURE = PACKAGE.parent / "docs" / "architecture.md"

ANYWHERE = {
    "dtypes",
    "epilogue",
    "problem",
    "device",
    "config",
    "legality",
    "search.spaces.space",
    "bundle",
    "plain_yaml",
}
"""Work on any machine: these import no GPU library, early or late."""

GPU_LIBRARIES = {"cupy", "cupy_backends", "cupyx", "cuda", "pynvml", "ml_dtypes"}
LEARNING = {"jax", "flax", "optax"}

LEARNERS = {f"search.learners.{name}" for name in ("networks", "knob_policy", "ppo", "cloning")}
LEARNERS |= {"search.strategies.ppo", "search.strategies.guided"}
LEARNERS |= {"search.policy.transfer", "search.policy.transfer_training"}
"""Import what learns at once, and are themselves imported by the registry of strategies only when one is asked for."""

LATE = {"": {"cupygemm"}, "__main__": {"cupygemm"}, "commands.tune_run": {"cupygemm"}, "plot": {"matplotlib"}}
"""What else may be imported late: the public names, what only some commands need, what only one extra brings, and what
imports pebble, without which a replay must do."""

DECLARATIONS = {name for name in ARROWS["cli"].split() if name.startswith("commands.")}
"""Of commands: loaded whenever the program starts, so what the command does is imported when it is run."""

ENTRIES = {"", "__main__", "cli"}
"""Of the root: where a public name or the command line is looked up."""

REPLAY = ("cli", "commands.tune_run", "search.strategies.cma")


class Import(NamedTuple):
    """An import statement: what, and whether it is late: run when a function is called, or by type checkers only."""

    target: str
    late: bool


PARTS = ("learners", "policy", "recordings", "runners", "spaces", "strategies")
"""Of the search."""
OTHERS = ("commands", "cuda_src", "search", *(f"search/{name}" for name in PARTS))
LAYERS = ("kernels", "views", "bundles", "choosing", "runtime", "measuring", "reports", "machine")
"""Packages whose modules go by their own names here, which differ."""

FILES = sorted(
    Path(folder, name)
    for folder, _, names in os.walk(PACKAGE, followlinks=True)
    for name in names
    if name.endswith(".py")
)


def folder_of(path: Path) -> str:
    """The folder that a module is in, "." for the root."""
    return path.parent.relative_to(PACKAGE).as_posix()


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    parts = parts[1:] if parts[0] in LAYERS and parts[-1] != "__init__" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = [path for path in FILES if path.name != "__init__.py" or folder_of(path) not in LAYERS]
TREES = {name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}
PACKAGE_OF = {name_of(path): folder_of(path) for path in MODULES if folder_of(path) in LAYERS}


def imports(node: ast.AST, late: bool = False) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, late) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            yield from (Import(f"{child.module}.{alias.name}", late) for alias in child.names)
        else:
            yield from imports(child, late or is_late(child))


def is_late(node: ast.AST) -> bool:
    """Whether what stands inside does not run at import: the body of a function, or for type checkers only."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def inner(target: str) -> str | None:
    """The module of the package that an import names, without "cupygemm."; None for other packages."""
    if target.split(".")[0] != "cupygemm":
        return None
    path = target.split(".")[1:]
    path = path[1:] if path[0] in LAYERS else path
    return ".".join(path if ".".join(path) in TREES else path[:-1])


def reachable(module: str) -> set[str]:
    found: set[str] = set()
    queue = [module]
    while queue:
        new = set(ARROWS[queue.pop()].split()) - found
        found |= new
        queue += new
    return found


def test_every_folder_with_modules_is_a_package_known_here():
    assert {folder_of(path) for path in FILES} == {".", *LAYERS, *OTHERS}


def test_every_module_has_its_own_name_and_arrows():
    assert sorted(name_of(path) for path in MODULES) == sorted(ARROWS)


def package_of(module: str) -> str:
    """The package that a module is in; "" for the root."""
    top = module.partition(".")[0]
    return PACKAGE_OF.get(module, top if top in OTHERS else "")


def packages() -> dict[str, set[str]]:
    """What each package imports of others, without the modules of the root."""
    graph: dict[str, set[str]] = {}
    for module in ARROWS:
        own = package_of(module)
        graph.setdefault(own, set()).update({package_of(target) for target in targets(module)} - {own, ""})
    del graph[""], graph["cuda_src"]  # data, without a module
    return graph


def test_no_arrow_between_packages_points_back():
    assert list(graphlib.TopologicalSorter(packages()).static_order())


@pytest.mark.parametrize("module", [name for name in ARROWS if package_of(name) == "" and name not in ENTRIES])
def test_modules_of_the_root_import_no_package(module):
    assert {package_of(target) for target in targets(module)} <= {""}


def test_what_is_written_of_packages_is_true():
    text = ARCHITECTURE.read_text(encoding="utf-8").partition("## Arrows")[2].split("```")[0]
    lines = [line for line in text.splitlines() if "→" in line]
    sides = [[re.findall(r"`(\w+)`", side) for side in line.split("→")] for line in lines]
    assert sorted(name for names, _ in sides for name in names) == sorted(packages())
    assert {name: set(targets) for names, targets in sides for name in names} == packages()


def test_no_arrow_points_back():
    graph = {module: targets.split() for module, targets in ARROWS.items()}
    assert list(graphlib.TopologicalSorter(graph).static_order())


def targets(module: str) -> set[str]:
    """What a module imports of the package; the version, which stands at the top, may be named by everybody."""
    named = {found.target for found in imports(TREES[module])} - {"cupygemm.__version__"}
    return {target for name in named if (target := inner(name)) is not None}


@pytest.mark.parametrize("module", TREES)
def test_imports_follow_the_arrows(module):
    assert targets(module) - reachable(module) == set()


@pytest.mark.parametrize("module", ARROWS)
def test_every_arrow_is_an_import(module):
    assert set(ARROWS[module].split()) - targets(module) == set()


def drawn() -> Iterator[tuple[str, str]]:
    """The arrows of the drawing whose both ends stand on one line; "a, b ─▶ c" are two."""
    text = ARCHITECTURE.read_text(encoding="utf-8")
    for line in text.partition("## Arrows")[2].split("```")[1].splitlines():
        groups = [re.findall(r"[\w.]+", part) for part in line.split("▶")]
        yield from ((a, b) for left, right in itertools.pairwise(groups) for a in left for b in right)


def test_the_drawing_is_true():
    arrows = list(drawn())
    assert len(arrows) > 30
    assert [(a, b) for a, b in arrows if b not in reachable(a)] == []


@pytest.mark.parametrize("module", [name for name in TREES if not name.startswith(("search", "commands"))])
def test_the_runtime_does_not_import_the_search(module):
    assert not [target for target in targets(module) if target.startswith("search")]


@pytest.mark.parametrize("module", [name for name in TREES if name.startswith("search")])
def test_the_search_shows_nothing(module):
    assert not {each.target.split(".")[0] for each in imports(TREES[module])} & {"click", "rich"}
    assert not [target for target in targets(module) if target.startswith("commands")]


def test_starting_the_command_line_imports_no_search():
    loaded, queue = set(), ["cli"]
    while queue:
        early = {inner(each.target) for each in imports(TREES[queue.pop()]) if not each.late} - {None}
        queue += early - loaded
        loaded |= early
    assert "commands.tune" in loaded
    assert not [name for name in loaded if name.startswith("search")]


@pytest.mark.parametrize("module", TREES)
def test_gpu_libraries_are_imported_late_and_jax_only_by_the_search(module):
    found = {(each.target.split(".")[0], each.late) for each in imports(TREES[module])}
    early = {name for name, late in found if not late}
    assert not early & (GPU_LIBRARIES | (set() if module in LEARNERS else LEARNING))
    assert module.startswith("search") or not {name for name, _ in found} & LEARNING


@pytest.mark.parametrize("module", sorted(ANYWHERE))
def test_modules_that_work_anywhere_import_no_gpu_library(module):
    used = {each.target.split(".")[0] for each in imports(TREES[module])}
    assert not used & (GPU_LIBRARIES | LEARNING)


@pytest.mark.parametrize("module", TREES)
def test_imports_inside_functions_are_there_for_a_reason(module):
    late = {each.target.split(".")[0] for each in imports(TREES[module]) if each.late}
    declared = {"cupygemm"} if module in DECLARATIONS else set()
    assert late - GPU_LIBRARIES - LEARNING - LATE.get(module, declared) == set()


@pytest.mark.parametrize("module", [name for name in TREES if name != "settings"])
def test_the_environment_is_read_in_settings_only(module):
    names = {"environ", "environb", "getenv", "getenvb", "putenv"}
    attributes = {node.attr for node in ast.walk(TREES[module]) if isinstance(node, ast.Attribute)}
    imported = {each.target.rsplit(".")[-1] for each in imports(TREES[module]) if each.target.startswith("os.")}
    assert not names & (attributes | imported)


def test_settings_reads_the_environment():
    # Should this stop being true, the test above looks for the wrong thing.
    assert "environ" in {node.attr for node in ast.walk(TREES["settings"]) if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("module", TREES)
def test_nothing_prints(module):
    calls = [node.func for node in ast.walk(TREES[module]) if isinstance(node, ast.Call)]
    assert "print" not in {call.id for call in calls if isinstance(call, ast.Name)}


@pytest.mark.parametrize("module", REPLAY)
def test_replay_works_without_gpu_libraries_and_jax(module):
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in sorted(GPU_LIBRARIES | LEARNING))
    source = f"import sys; {blocked}import cupygemm.{module}"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
