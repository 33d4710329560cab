"""`cupygemm cache`: what is counted, and that nothing but the cache is deleted."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from cupygemm import cli
from cupygemm.kernels import kernel_cache


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path))
    folder = tmp_path / "kernels"
    folder.mkdir()
    for name, size in (("a.cubin", 700_000), ("a.json", 100_000), ("b.cubin", 400_000), ("b.json", 100_000)):
        (folder / name).write_bytes(bytes(size))
    (folder / "mine.txt").write_text("not of the cache")
    (tmp_path / "gpu-0.lock").touch()
    return folder


def cache(command: str) -> str:
    result = CliRunner().invoke(cli.main, ["cache", command])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_show_counts_kernels_and_bytes(folder):
    assert cache("show") == f"{folder}: 2 kernels, 1.3 MB\n"


def test_clear_deletes_the_entries_and_nothing_else(folder):
    assert cache("clear") == f"{folder}: 2 kernels deleted\n"
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    assert (folder.parent / "gpu-0.lock").exists()
    assert cache("show") == f"{folder}: 0 kernels, 0.0 MB\n"


def test_an_empty_cache_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path / "nowhere"))
    assert kernel_cache.kernels() == []
    assert cache("clear").endswith("0 kernels deleted\n")
