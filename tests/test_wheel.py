"""What is installed: the wheel, built through the sdist, holds the whole package and nothing beside it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "cupygemm", "cuda_src", "search")
SHIPPED = (".py", ".cu", ".cuh", ".jsonl.gz", ".yaml", ".npz", "py.typed")

# One worker builds the wheel once for all of these.
pytestmark = pytest.mark.xdist_group("wheel")

PROBE = """
import importlib.util
from importlib.resources import files
import cupygemm, cupygemm.bundles.in_force, cupygemm.search.spaces.space, cupygemm.kernels.kernel_source
assert cupygemm.__file__.startswith(TARGET), cupygemm.__file__
assert "ptx/wgmma.cuh" in cupygemm.kernels.kernel_source.cuda_sources()
assert cupygemm.bundles.in_force.shipped_bundle().entries
assert importlib.util.find_spec("search") is None
assert importlib.util.find_spec("cuda_src") is None
print(cupygemm.__version__)
"""


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # From a copy: a build leaves its own files in the tree it runs in.
    tree = tmp_path_factory.mktemp("wheel") / "tree"
    tree.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree / name)
    run(sys.executable, "-m", "build", "--no-isolation", cwd=tree)
    assert len(list((tree / "dist").glob("*.tar.gz"))) == 1
    (built,) = (tree / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def shipped(folder: str) -> set[str]:
    """The files below a top-level folder that belong in the wheel, relative to it."""
    root = ROOT / folder
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.name.endswith(SHIPPED)}


@pytest.mark.parametrize(
    ("folder", "installed"),
    [("cupygemm", "cupygemm"), ("search", "cupygemm/search"), ("cuda_src", "cupygemm/cuda_src")],
)
def test_the_wheel_holds_every_source_and_table(names, folder, installed):
    expected = {f"{installed}/{name}" for name in shipped(folder)}
    assert len(expected) > 5
    assert expected - names == set()


def test_the_wheel_holds_the_recorded_tables(names):
    assert any(name.startswith("cupygemm/search/tables/") for name in names)


def test_the_wheel_holds_the_bundle(names):
    assert "cupygemm/bundles/h200.yaml" in names


def test_the_wheel_installs_one_top_level_name(names):
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"cupygemm"}


def test_the_installed_package_works(wheel, tmp_path):
    target = tmp_path / "target"
    install = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target))
    run(*install, str(wheel), cwd=tmp_path)
    # -P and a working directory elsewhere keep the checkout out of sight; the target goes before an editable install.
    probe = f"import sys; TARGET = {str(target)!r}; sys.path.insert(0, TARGET)\n{PROBE}"
    version = run(sys.executable, "-P", "-c", probe, cwd=tmp_path).strip()
    assert f"cupygemm-{version}-" in wheel.name
