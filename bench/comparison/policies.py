"""The policies that seeded searches begin with: none has learnt from the family of problems that is searched.

A policy is trained on all tables of a folder but those of one family, from several seeds, as bench/transfer.py does.
What was trained is kept in files, named by a digest of all that it depends on.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

from bench.comparison.depends import digest_of
from cupygemm.search.policy.families import family
from cupygemm.search.policy.transfer_options import TrainingOptions
from cupygemm.search.policy.weights import PolicyWeights
from cupygemm.search.recordings.recorded import Recorded, recorded_tables
from cupygemm.search.recordings.table import Table

TRAININGS = 3
"""Seeds of the training: searches take turns with them."""
TRAINED, IMITATING = TrainingOptions(), TrainingOptions(updates=0)
"""How policies are trained: as the one that ships, and one that only imitates."""
TRAINER = "cupygemm.search.policy.transfer_training"
"""What a trained policy depends on, with all that it imports."""


class Training(NamedTuple):
    """A policy to be had.

    Attributes:
        folder: of the tables; None for those of the package.
        family: of problems, which it does not learn from.
        seed: of the training.
        options: of the training.
    """

    folder: Path | None
    family: str
    seed: int
    options: TrainingOptions


def of_other_families(folder: Path | None, name: str) -> list[Recorded]:
    """The tables of a folder whose problems are of another family than this.

    Raises:
        FileError: there is no such folder, or a file in it is no table.
    """
    return [each for each in recorded_tables(folder) if family(each.problem) != name]


def trainings(folder: Path | None, options: TrainingOptions) -> list[Training]:
    """All that searches of a folder's tables need, trained in this way."""
    families = sorted({family(each.problem) for each in recorded_tables(folder)})
    return [Training(folder, name, seed, options) for name in families for seed in range(TRAININGS)]


def path_of(training: Training, work: Path) -> Path:
    """Where it is kept."""
    return work / "policies" / f"{training.family}-{training.seed}-{_digest(training)}.npz"


def policy(training: Training, work: Path) -> PolicyWeights:
    """The trained policy, from its file where there is one; a minute and a half of one core otherwise.

    Args:
        training: what it learns from.
        work: folder whose sub-folder `policies` keeps the files.

    Raises:
        ConfigError: no table is left to learn from.
        FileError: a table or the file cannot be read.
    """
    path = path_of(training, work)
    if not path.exists():
        # JAX takes seconds to import, and who only reads a policy does not need it.
        from cupygemm.search.policy.transfer_training import train

        tables = [Table.read(each.path) for each in of_other_families(training.folder, training.family)]
        path.parent.mkdir(parents=True, exist_ok=True)
        train(tables, training.options, training.seed).write(path)
    return _read(path)


@cache
def _read(path: Path) -> PolicyWeights:
    return PolicyWeights.read(path)


@cache
def _digest(training: Training) -> str:
    options = json.dumps(asdict(training.options), sort_keys=True)
    whole = hashlib.sha256(f"{options} {digest_of(frozenset((TRAINER,)))}".encode())
    for each in of_other_families(training.folder, training.family):
        whole.update(hashlib.sha256(each.path.read_bytes()).digest())
    return whole.hexdigest()[:12]
