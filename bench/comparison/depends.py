"""What a result depends on: a digest of the code of modules and of all of this project that they import.

Neither comments nor docstrings count, nor where a module lies: none of that changes what was searched.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Collection
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from modulefinder import ModuleFinder
from pathlib import Path

PROJECT = ("bench", "cupygemm")
FRONT = ("cupygemm.runtime", "cupygemm.machine")
"""What `import cupygemm` brings with it, and no search on a table goes through."""
LEARNING = ("cmaes", "flax", "jax", "numpy", "optax")
"""Packages whose versions change what our strategies do."""


@cache
def digest_of(modules: frozenset[str], packages: tuple[str, ...] = LEARNING) -> str:
    """Of the code of modules, of what they import of this project, and of the versions of packages.

    Args:
        modules: absolute names. What a module imports by a name in a string is not found: name that too.
        packages: that must be installed.

    Raises:
        ModuleNotFoundError: a module or a package is not there.
    """
    codes = {hashlib.sha256(_code(path).encode()).hexdigest() for path in _imported(modules)}
    versions = [f"{name} {version(name)}" for name in packages]
    return hashlib.sha256(" ".join((*sorted(codes), *sorted(versions))).encode()).hexdigest()[:12]


def _imported(modules: Collection[str]) -> set[Path]:
    """The files of modules and of what they import of this project, packages' `__init__` too."""
    roots = {str(_file_of(name).parent.parent) for name in PROJECT}
    finder = ModuleFinder(path=sorted(roots), excludes=FRONT)
    for name in modules:
        finder.run_script(str(_file_of(name)))
    found = (name for name in finder.modules if name.partition(".")[0] in PROJECT)
    return {_file_of(name) for name in (*modules, *found)}


def _file_of(module: str) -> Path:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no module {module} with a file", name=module)
    return Path(spec.origin)


def _code(path: Path) -> str:
    """Without comments, docstrings and imports: what is imported is part of the digest by itself."""
    return ast.unparse(_Bare().visit(ast.parse(path.read_text(encoding="utf-8"))))


class _Bare(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else node

    def visit_Import(self, node: ast.Import) -> None:
        """Leaves it out."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Leaves it out."""
