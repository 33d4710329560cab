"""`cupygemm train`: a policy that suggests configs for problems that nobody has measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cupygemm.commands.options import FOLDER, L2_TERM_HELP, PATH, TABLES_HELP
from cupygemm.names import FAMILIES, L2_TERMS, L2_WEIGHT, SPILL_WEIGHT, UPDATES

_WEIGHT = click.FloatRange(min=0)


@click.command("train", short_help="Train a policy on recorded tables.")
@click.option("--tables", type=FOLDER, help=TABLES_HELP)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--updates",
    type=click.IntRange(min=0),
    default=UPDATES,
    show_default=True,
    help="Of PPO, after the imitation of the fastest configs.",
)
@click.option(
    "--without",
    "families",
    type=click.Choice(FAMILIES),
    multiple=True,
    help="Leave out a family of problems that are alike; repeatable.",
)
@click.option("--l2-weight", type=_WEIGHT, default=L2_WEIGHT, show_default=True, help="Of the L2 term in the reward.")
@click.option("--spill-weight", type=_WEIGHT, default=SPILL_WEIGHT, show_default=True, help="Of the spill term in it.")
@click.option("--l2-term", type=click.Choice(L2_TERMS), default=L2_TERMS[0], show_default=True, help=L2_TERM_HELP)
@click.option("-o", "--output", type=PATH, required=True, help="File of the weights, an .npz.")
def train_command(tables: Path | None, families: tuple[str, ...], output: Path, **options: Any) -> None:
    """Train a policy on recorded tables: it imitates their fastest configs, then draws its own and learns by PPO."""
    from cupygemm.commands.train_run import TrainRequest, run_train
    from cupygemm.search.rewards import RewardWeights

    rewards = RewardWeights(*(options.pop(name) for name in ("l2_weight", "spill_weight", "l2_term")))
    run_train(TrainRequest(tables=tables, families=families, output=output, rewards=rewards, **options))
