"""`cupygemm tune`: the search for the fastest config of a problem."""

from __future__ import annotations

from typing import Any

import click

from cupygemm.commands.options import (
    FOLDER,
    L2_TERM_HELP,
    PATH,
    STORE_HELP,
    TABLES_HELP,
    command_line,
    problem_argument,
    read_device,
    refuse,
)
from cupygemm.names import (
    GUIDED,
    L2_TERMS,
    L2_WEIGHT,
    LEARNING,
    PLAINEST,
    SEEDED,
    SPILL_WEIGHT,
    STRATEGIES,
    UNGUIDED,
)
from cupygemm.problem import Problem

_STRATEGY_HELP = (
    f"Default: {GUIDED}, {UNGUIDED} where no policy can guide it (replay of what it learnt from, --cold), "
    f"{PLAINEST} where a package is missing; a line says which and why."
)
_BUDGET_HELP = "Configs to measure. Default: 100; no limit with --seconds or the exhaustive strategy."
_DEVICE_HELP = "cuda or cuda:N, replay, or auto: the first Hopper GPU, and replay where there is none."
_COLD_HELP = "Begin at random, not with the best configs of recorded problems or a policy's suggestions."
_POLICY_HELP = "Weights that `cupygemm train` wrote. Default: the package's, unless they know what is replayed."
_L2_WEIGHT_HELP = "Of the L2 term in the reward that ppo and hybrid learn from."
_SPILL_WEIGHT_HELP = "Of the spill term in it."
_COUNTERS_HELP = "Count the L2's figures with Nsight Compute, some seconds a batch; they are modelled otherwise."

_WEIGHT = click.FloatRange(min=0)
_POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command("tune")
@problem_argument
@click.option("--strategy", type=click.Choice(tuple(STRATEGIES)), help=_STRATEGY_HELP)
@click.option("--budget", type=click.IntRange(min=1), help=_BUDGET_HELP)
@click.option("--seconds", type=_POSITIVE, help="Stop after this long.")
@click.option("--stop-at-speedup", type=_POSITIVE, help="Stop there, over cuBLAS.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--device", default="auto", show_default=True, callback=read_device, help=_DEVICE_HELP)
@click.option("-o", "--output", type=PATH, help="Bundle to add the result to, unless it holds a better one.")
@click.option("--store", type=PATH, help=f"{STORE_HELP}, and none on replay.")
@click.option("--tables", type=FOLDER, help=TABLES_HELP)
@click.option("--policy", type=PATH, help=_POLICY_HELP)
@click.option("--cold", is_flag=True, help=_COLD_HELP)
@click.option("--l2-weight", type=_WEIGHT, default=L2_WEIGHT, show_default=True, help=_L2_WEIGHT_HELP)
@click.option("--spill-weight", type=_WEIGHT, default=SPILL_WEIGHT, show_default=True, help=_SPILL_WEIGHT_HELP)
@click.option("--l2-term", type=click.Choice(L2_TERMS), default=L2_TERMS[0], show_default=True, help=L2_TERM_HELP)
@click.option("--counters", is_flag=True, help=_COUNTERS_HELP)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.pass_context
def tune_command(
    ctx: click.Context,
    /,
    problem: Problem,
    budget: int | None,
    seconds: float | None,
    stop_at_speedup: float | None,
    **options: Any,
) -> None:
    """Search for the fastest kernel config of a problem. Ctrl-C ends the search and keeps the best so far."""
    _refuse_idle_options(ctx, options["strategy"], options["device"], options["cold"])
    from cupygemm.commands.tune_run import TuneRequest, run_tune
    from cupygemm.search.rewards import RewardWeights
    from cupygemm.search.tune import Budget

    unlimited = seconds is not None or options["strategy"] == "exhaustive"
    limits = Budget(budget or (None if unlimited else 100), seconds, stop_at_speedup)
    rewards = RewardWeights(*(options.pop(name) for name in ("l2_weight", "spill_weight", "l2_term")))
    run_tune(TuneRequest(problem=problem, budget=limits, rewards=rewards, command=command_line(), **options))


def _refuse_idle_options(ctx: click.Context, strategy: str | None, device: int | str, cold: bool) -> None:
    """Refuses options that would change nothing, or might: what is not named is chosen by what is known."""
    if strategy not in LEARNING:
        learning = " and ".join(LEARNING)
        why = f"name a strategy that learns from a reward: {learning} do"
        why = why if strategy is None else f"{strategy} learns from no reward; {learning} do"
        refuse(ctx, {"l2_weight", "spill_weight", "l2_term"}, why)
    if strategy not in (None, *SEEDED):
        refuse(ctx, {"cold", "policy"}, f"{strategy} begins with nothing known in any case")
    if cold:
        refuse(ctx, {"policy"}, "with --cold no policy guides")
    if isinstance(device, int) and (cold or strategy not in (None, *SEEDED)):
        refuse(ctx, {"tables"}, "on a GPU they are to begin with, and this search begins with nothing known")
    if device == "replay":
        refuse(ctx, {"counters"}, "a replay runs nothing that could be counted")
