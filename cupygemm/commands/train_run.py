"""What `cupygemm train` does: tables, training, the file of weights, and what is said of them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import click

from cupygemm.atomic import check_writable
from cupygemm.errors import ConfigError, FileError
from cupygemm.search.policy.families import family
from cupygemm.search.policy.transfer_options import TrainingOptions
from cupygemm.search.policy.transfer_training import train
from cupygemm.search.recordings.recorded import no_tables, recorded_tables
from cupygemm.search.recordings.table import Table
from cupygemm.search.rewards import RewardWeights
from cupygemm.text import count


@dataclass(frozen=True)
class TrainRequest:
    """What was asked of `cupygemm train`.

    Attributes:
        tables: folder of recorded tables; None for those of the package.
        families: of problems, that are left out.
        seed: of the training.
        updates: of PPO.
        rewards: what PPO maximises.
        output: file of the weights.
    """

    tables: Path | None
    families: tuple[str, ...]
    seed: int
    updates: int
    rewards: RewardWeights
    output: Path


def run_train(request: TrainRequest) -> None:
    """Trains, and writes the weights.

    Raises:
        CupygemmError: there is nothing to train on, or a table cannot be read.
        OSError: the file cannot be written, which is found out first.
    """
    check_writable(request.output)
    found = recorded_tables(request.tables)
    if not found:
        raise FileError(no_tables(request.tables))
    recorded = [each for each in found if family(each.problem) not in request.families]
    if not recorded:
        raise ConfigError(f"nothing to train on: --without {' --without '.join(request.families)} leaves no table")
    options = TrainingOptions(updates=request.updates)
    started = time.monotonic()
    tables = [Table.read(each.path) for each in recorded]
    weights = train(tables, options, request.seed, request.rewards, click.echo)
    weights.write(request.output)
    seconds = time.monotonic() - started
    click.echo(f"{request.output}: a policy of {count(len(tables), 'problem')}, trained in {seconds:.0f} s")
