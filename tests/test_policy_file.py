"""The file of a policy: what it keeps, and what is refused in it."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("flax")

from cupygemm.errors import FileError
from cupygemm.search.policy.features import FEATURES
from cupygemm.search.policy.weights import SCHEMA, PolicyWeights


def rewritten(weights: PolicyWeights, tmp_path, **changes):
    """The file with some arrays, or keys of the header, replaced."""
    path = tmp_path / "policy.npz"
    weights.write(path)
    with np.load(path, allow_pickle=False) as loaded:
        arrays = dict(loaded)
    header = json.loads(arrays["header"].tobytes())
    for name, value in changes.items():
        if name in arrays:
            arrays[name] = value
        else:
            header[name] = value
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return path


def test_a_file_says_what_its_numbers_mean(weights, tmp_path):
    path = rewritten(weights, tmp_path)
    again = PolicyWeights.read(path)
    assert again.configs == weights.configs
    assert again.knobs == weights.knobs
    assert again.sources == weights.sources
    assert again.header["versions"].keys() >= {"cupygemm", "jax", "flax"}
    assert again.header["seed"] == 5
    seen = np.random.default_rng(0).normal(size=(9, len(FEATURES))).astype(np.float32)
    np.testing.assert_array_equal(again.scores(seen), weights.scores(seen))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": "cupygemm.policy/1"}, f"schema is 'cupygemm.policy/1': this version reads {SCHEMA}"),
        ({"features": [*FEATURES[:-1], "moon"]}, "features differ from those of this version: B read once, moon"),
        ({"features": FEATURES[::-1]}, "features differ from those of this version: their order"),
        ({"knobs": {"colour": [1]}}, "knobs colour are no fields"),
        ({"mean": np.zeros(3, np.float32)}, "mean and scale are of 3"),
        ({"scale": np.full(len(FEATURES), np.nan, np.float32)}, "scale: finite float32"),
        ({"kernel_1": np.zeros((2, 3, 3), np.float32)}, "layers are"),
        ({"kernel_1": np.zeros((8, 8), np.float32)}, "kernel_1: finite float32 with 3 axes"),
        ({"kernel_1": np.zeros((3, 8, 8), np.float32)}, "of [2, 2, 2, 3, 2, 2, 2] networks: one at least"),
        ({"bias_2": np.zeros((1, 1), np.float32)}, "of [2, 2, 2, 2, 2, 2, 1] networks"),
        ({"bias_0": None}, "bias_0"),
        ({"bias_1": np.full((2, 8), np.inf, np.float32)}, "bias_1: finite float32"),
        ({"prior": np.float32(1.0)}, "prior: finite float32 with 1 axes"),
        ({"prior": np.zeros(2)}, "prior: finite float32"),
        ({"prior": np.zeros(3, np.float32)}, "of [3, 2, 2, 2, 2, 2, 2] networks"),
        ({"configs": np.zeros((2, 3), np.int16)}, "configs: integers for"),
        ({"sources": [{"problem": {"m": 0}}]}, "problem"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_a_file_that_does_not_fit_is_refused(changes, said, weights, tmp_path):
    path = rewritten(weights, tmp_path, **changes)
    with pytest.raises(FileError) as caught:
        PolicyWeights.read(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert "cupygemm train" in str(caught.value)


def test_what_is_written_can_be_read_whatever_the_prior_was_computed_in(weights, tmp_path):
    path = tmp_path / "policy.npz"
    replace(weights, prior=weights.prior.astype(np.float64)).write(path)
    again = PolicyWeights.read(path)
    assert again.prior.dtype == np.float32
    assert again.prior.tolist() == weights.prior.tolist()


def test_a_file_without_members_is_refused(weights, tmp_path):
    none = tuple((kernel[:0], bias[:0]) for kernel, bias in weights.layers)
    path = tmp_path / "policy.npz"
    replace(weights, layers=none, prior=weights.prior[:0]).write(path)
    with pytest.raises(FileError, match=r"of \[0, 0, 0, 0, 0, 0, 0\] networks: one at least"):
        PolicyWeights.read(path)


def test_what_is_no_file_of_arrays_is_refused(tmp_path):
    path = tmp_path / "policy.npz"
    with pytest.raises(FileError, match="No such file"):
        PolicyWeights.read(path)
    path.write_bytes(b"weights")
    with pytest.raises(FileError, match=r"no \.npz of plain arrays"):
        PolicyWeights.read(path)
    packed = io.BytesIO()
    np.savez(packed, header=np.array([{"a": 1}], dtype=object))
    path.write_bytes(packed.getvalue())
    with pytest.raises(FileError, match=r"no \.npz of plain arrays.*pickle"):
        PolicyWeights.read(path)
