"""One measuring process a GPU."""

from __future__ import annotations

import pytest

from cupygemm.errors import LaunchError
from cupygemm.measuring.gpu_lock import holding_gpu, take_gpu


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path))


def test_a_gpu_that_is_held_is_refused_and_free_afterwards():
    with holding_gpu(0):
        with pytest.raises(LaunchError, match="another process is measuring on cuda:0"):
            take_gpu(0)
        take_gpu(1).release()
    take_gpu(0).release()


def test_an_error_frees_it_too():
    with pytest.raises(ZeroDivisionError), holding_gpu(0):
        raise ZeroDivisionError
    take_gpu(0).release()


def test_a_folder_that_takes_no_lock_is_named_with_the_variable(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path / "file" / "folder"))
    with pytest.raises(OSError, match="CUPYGEMM_CACHE_DIR names another folder"):
        take_gpu(0)
