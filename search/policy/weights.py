"""The file of a policy that serves many problems: plain arrays in an .npz, and the NumPy that evaluates them.

Nothing in it can run code: it is read without pickle, and what does not fit this version is refused. A header of JSON
names what the numbers mean: the features in order, the knobs with the values seen, the tables learnt from, versions.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from cupygemm.atomic import write_atomically
from cupygemm.config import KernelConfig
from cupygemm.errors import CupygemmError, FileError
from cupygemm.problem import Problem
from cupygemm.search.policy.features import BEHIND, FEATURES
from cupygemm.search.spaces.space import FIELD_NAMES

SCHEMA = "cupygemm.policy/2"
MAX_BYTES = 16 * 1024 * 1024
"""Most bytes that a file may unpack to."""
MOST_STANDARD = 4.0
"""Standardised features are clipped there: beyond what was learnt from, a policy goes on as at its edge."""
LEAST_SPREAD = 1e-6
"""A standard deviation below which a feature counts as the same throughout."""
SHIPPED = "policy.npz"

Array = NDArray[np.float32]


class Standard(NamedTuple):
    """What makes features of like size.

    Attributes:
        mean, scale: (features,): (x - mean) * scale is what a network gets. A feature that was the same in all that was
            learnt from has scale 0: nothing is known of it.
    """

    mean: Array
    scale: Array

    @classmethod
    def of(cls, features: Array) -> Self:
        """From all features that are learnt from: (n, features)."""
        mean, spread = features.mean(0), features.std(0)
        scale = np.where(spread > LEAST_SPREAD, 1 / np.maximum(spread, LEAST_SPREAD), 0.0)
        return cls(mean.astype(np.float32), scale.astype(np.float32))

    def __call__(self, features: Array) -> Array:
        """Features (..., features) as the network takes them, clipped."""
        clipped: Array = np.clip((features - self.mean) * self.scale, -MOST_STANDARD, MOST_STANDARD).astype(np.float32)
        return clipped


@dataclass(frozen=True)
class PolicyWeights:
    """A trained policy: several networks, its members, whose mean counts.

    Attributes:
        standard: of the features.
        layers: kernels (members, inputs, outputs) and biases (members, outputs) of the networks, the last with one
            output; tanh between.
        prior: weights of log2 of the estimate, beside what the networks say: (members,).
        configs: that were among the fastest somewhere, to choose from where a space is too large to be walked.
        knobs: the values of each config field that were seen.
        header: `sources` (problems learnt from), `versions`, `seed`, `options`: where it comes from.
    """

    standard: Standard
    layers: tuple[tuple[Array, Array], ...]
    prior: Array
    configs: tuple[KernelConfig, ...]
    knobs: Mapping[str, tuple[int, ...]]
    header: Mapping[str, Any]

    @property
    def sources(self) -> tuple[Problem, ...]:
        """The problems whose tables it learnt from."""
        return tuple(Problem.from_dict(source["problem"]) for source in self.header["sources"])

    @property
    def members(self) -> int:
        """How many networks it is the mean of."""
        return len(self.prior)

    @property
    def hidden(self) -> int:
        """Length of the hidden layers of a member."""
        return len(self.layers[0][1][0])

    def scores(self, features: Array) -> Array:
        """Logits of configs, means of the members', up to a constant of the problem: features (..., features) to (...).

        What a member adds to all configs of a problem alike is in that constant, so nothing has to be centred first.
        """
        standard = self.standard(features)
        # One after the other: what a member makes of some thousand configs stays in the cache.
        said = [_said([(kernel[i], bias[i]) for kernel, bias in self.layers], standard) for i in range(self.members)]
        scores: Array = np.mean(said, axis=0) + self.prior.mean() * features[..., BEHIND]
        return scores

    def write(self, path: Path) -> None:
        """Writes the file atomically; the same weights always give the same bytes.

        Raises:
            OSError: the file cannot be written.
        """
        head = {"schema": SCHEMA, "features": FEATURES, "knobs": dict(self.knobs), **self.header}
        arrays: dict[str, Any] = {
            "header": np.frombuffer(json.dumps(head).encode(), dtype=np.uint8),
            "mean": self.standard.mean,
            "scale": self.standard.scale,
            "prior": np.asarray(self.prior, np.float32),
            "configs": np.array([[getattr(c, name) for name in self.knobs] for c in self.configs], dtype=np.int16),
        }
        for index, (kernel, bias) in enumerate(self.layers):
            arrays[f"kernel_{index}"], arrays[f"bias_{index}"] = kernel, bias
        packed = io.BytesIO()
        np.savez_compressed(packed, **arrays)
        write_atomically(path, packed.getvalue())

    @classmethod
    def read(cls, path: Traversable) -> Self:
        """Reads and checks a file.

        Raises:
            FileError: it cannot be read, or does not fit this version; the message says in what.
        """
        arrays = _read_arrays(path)
        try:
            return cls._checked(arrays)
        except KeyError as error:
            raise FileError(f"{path}: {error} is missing: write the file anew with `cupygemm train`") from error
        except (CupygemmError, ValueError, TypeError, AttributeError) as error:
            raise FileError(f"{path}: {error}; write the file anew with `cupygemm train`") from error

    @classmethod
    def _checked(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        header = _header(arrays["header"])
        knobs = {str(name): tuple(map(int, values)) for name, values in header.pop("knobs").items()}
        unknown = [name for name in knobs if name not in FIELD_NAMES]
        if unknown:
            raise FileError(f"knobs {', '.join(unknown)} are no fields of a config of this version")
        count = sum(name.startswith("kernel_") for name in arrays)
        layers = tuple((_floats(arrays, f"kernel_{i}", 3), _floats(arrays, f"bias_{i}", 2)) for i in range(count))
        shapes = [kernel.shape[1:] for kernel, _ in layers]
        widths = [len(FEATURES), *(bias.shape[1] for _, bias in layers)]
        if not layers or widths[-1] != 1 or shapes != list(pairwise(widths)):
            raise FileError(f"layers are {shapes}: they have to lead from {len(FEATURES)} inputs to 1 output")
        mean, scale = _floats(arrays, "mean", 1), _floats(arrays, "scale", 1)
        if not len(mean) == len(scale) == len(FEATURES):
            raise FileError(f"mean and scale are of {len(mean)} and {len(scale)} features, not {len(FEATURES)}")
        prior = _floats(arrays, "prior", 1)
        members = [len(prior), *(len(array) for layer in layers for array in layer)]
        if len(set(members)) > 1 or not len(prior):
            raise FileError(f"prior and layers are of {members} networks: one at least, everywhere as many")
        found = cls(Standard(mean, scale), layers, prior, _configs(arrays["configs"], tuple(knobs)), knobs, header)
        _ = found.sources  # that they are problems
        return found


@cache
def shipped_weights() -> PolicyWeights | None:
    """The policy of the package; None where it has none.

    Raises:
        FileError: the file does not fit this version.
    """
    path = files("cupygemm.search").joinpath("policies", SHIPPED)
    return PolicyWeights.read(path) if path.is_file() else None


def _said(layers: Sequence[tuple[Array, Array]], standard: Array) -> Array:
    """What one member's network makes of standardised features (..., features): (...)."""
    hidden = standard
    for kernel, bias in layers[:-1]:
        hidden = np.tanh(hidden @ kernel + bias)
    kernel, bias = layers[-1]
    said: Array = (hidden @ kernel + bias)[..., 0]
    return said


def _read_arrays(path: Traversable) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if len(data) > MAX_BYTES or sum(entry.file_size for entry in archive.infolist()) > MAX_BYTES:
                raise FileError(f"{path}: larger than {MAX_BYTES} bytes, no policy is")
        with np.load(io.BytesIO(data), allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}
    except FileError:
        raise
    except OSError as error:
        remedy = "name a file that is there: `cupygemm train -o FILE` writes one"
        raise FileError(f"{path}: {error.strerror or error}; {remedy}") from error
    except (ValueError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise FileError(f"{path}: no .npz of plain arrays, as `cupygemm train` writes it: {error}") from error


def _header(packed: NDArray[Any]) -> dict[str, Any]:
    header = json.loads(packed.astype(np.uint8).tobytes())
    schema = header.get("schema") if isinstance(header, dict) else None
    if schema != SCHEMA:
        raise FileError(f"schema is {schema!r}: this version reads {SCHEMA}")
    found = header.pop("features")
    if tuple(found) != FEATURES:
        unlike = sorted(set(found) ^ set(FEATURES)) or ["their order"]
        raise FileError(f"features differ from those of this version: {', '.join(map(str, unlike))}")
    return {name: value for name, value in header.items() if name != "schema"}


def _floats(arrays: dict[str, NDArray[Any]], name: str, axes: int) -> Array:
    found = arrays[name]
    if found.dtype != np.float32 or found.ndim != axes or not np.isfinite(found).all():
        raise FileError(f"{name}: finite float32 with {axes} axes belong here, not {found.dtype} {found.shape}")
    return found


def _configs(rows: NDArray[Any], names: Sequence[str]) -> tuple[KernelConfig, ...]:
    """Configs of a file that may be older than the newest fields, which then have their defaults."""
    if rows.ndim != 2 or rows.shape[1] != len(names) or rows.dtype.kind != "i":
        raise FileError(f"configs: integers for {len(names)} knobs belong here, not {rows.dtype} {rows.shape}")
    return tuple(KernelConfig.from_ints(names, row) for row in rows.tolist())
