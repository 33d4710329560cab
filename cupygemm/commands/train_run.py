"""What `cupygemm train` does: tables, training, the file of weights, and what is said of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import click

from cupygemm.atomic import check_writable
from cupygemm.errors import ConfigError
from cupygemm.search.families import FAMILIES, family
from cupygemm.search.recorded import recorded_tables
from cupygemm.search.rewards import RewardWeights
from cupygemm.search.table import Table
from cupygemm.search.transfer_options import TrainingOptions
from cupygemm.search.transfer_training import train
from cupygemm.text import count


@dataclass(frozen=True)
class TrainRequest:
    """What was asked of `cupygemm train`.

    Attributes:
        tables: folder of recorded tables; None for those of the package.
        families: of problems, that are left out.
        seed: of the training.
        updates: of PPO; None for the default.
        rewards: what PPO maximises.
        output: file of the weights.
    """

    tables: Path | None
    families: tuple[str, ...]
    seed: int
    updates: int | None
    rewards: RewardWeights
    output: Path


def run_train(request: TrainRequest) -> None:
    """Trains, and writes the weights.

    Raises:
        CupygemmError: there is nothing to train on, or a table cannot be read.
        OSError: the file cannot be written, which is found out first.
    """
    unknown = [name for name in request.families if name not in FAMILIES]
    if unknown:
        raise ConfigError(f"--without {unknown[0]}: families are {', '.join(FAMILIES)}")
    check_writable(request.output)
    recorded = [each for each in recorded_tables(request.tables) if family(each.problem) not in request.families]
    options = TrainingOptions()
    if request.updates is not None:
        options = replace(options, updates=request.updates)
    started = time.monotonic()
    tables = [Table.read(each.path) for each in recorded]
    weights = train(tables, options, request.seed, request.rewards, click.echo)
    weights.write(request.output)
    seconds = time.monotonic() - started
    click.echo(f"{request.output}: a policy of {count(len(tables), 'problem')}, trained in {seconds:.0f} s")
