"""The guided search, what `cupygemm tune --strategy hybrid` does with a policy, and the same without one part of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from math import inf
from pathlib import Path

from bench.comparison import policies
from bench.comparison.cases import Case
from bench.comparison.policies import Training, of_other_families
from cupygemm.config import KernelConfig
from cupygemm.search.policy.families import family
from cupygemm.search.policy.suggest import Guide
from cupygemm.search.policy.transfer_options import RefitOptions, TrainingOptions
from cupygemm.search.policy.weights import PolicyWeights
from cupygemm.search.recordings.table import Table
from cupygemm.search.rewards import RewardWeights
from cupygemm.search.seeds import known_from_others
from cupygemm.search.spaces.space import SearchSpace
from cupygemm.search.strategies import Strategy, StrategyContext, make_strategy
from cupygemm.search.tune import Budget, tune

PPO_ALONE = TrainingOptions(cloning_steps=1, cloning_rate=0.0)
"""Training whose imitation moves nothing: PPO begins with the estimate, as imitation does."""
UNTRAINED = TrainingOptions(cloning_steps=1, cloning_rate=0.0, updates=0)
"""A network that says almost nothing, beside the estimate."""
UNMASKED = 8192
"""Points that the guided search without masks chooses from."""


@dataclass(frozen=True)
class Variant:
    """A search by its parts; the defaults are the whole one.

    Attributes:
        training: of the policy; None for none.
        nearest: whether it starts from the best configs of the nearest problems, too.
        rewards: of the training and of the search.
        learns: whether the policy learns what is measured.
        neighbours: whether half of a batch are neighbours of the best; else the policy's ranking has all of it.
        masks: whether only legal configs can be drawn; an illegal one costs an evaluation and is told as a failure.
        strategy: a key of `names.STRATEGIES`.
    """

    training: TrainingOptions | None = policies.TRAINED
    nearest: bool = True
    rewards: RewardWeights = field(default_factory=RewardWeights)
    learns: bool = True
    neighbours: bool = True
    masks: bool = True
    strategy: str = "hybrid"

    @property
    def is_seeded(self) -> bool:
        """Whether its searches depend on the tables beside the one that is searched."""
        return self.training is not None or self.nearest


WHOLE = "the whole"
VARIANTS = {
    WHOLE: Variant(),
    "no policy, cold": Variant(training=None, nearest=False),
    "no policy, from the nearest problems": Variant(training=None),
    "starts from the policy alone": Variant(nearest=False),
    "untrained, the estimate ranks": Variant(training=UNTRAINED),
    "trained without PPO": Variant(training=policies.IMITATING),
    "trained without imitation": Variant(training=PPO_ALONE),
    "no learning in the search": Variant(learns=False),
    "no neighbours": Variant(neighbours=False),
    "neither, the ranking alone": Variant(learns=False, neighbours=False),
    "no L2 term": Variant(rewards=RewardWeights(l2=0.0)),
    "no spill term": Variant(rewards=RewardWeights(spill=0.0)),
    "no masks": Variant(masks=False),
    "ppo, cold": Variant(training=None, nearest=False, strategy="ppo"),
    "ppo, cold, no masks": Variant(training=None, nearest=False, masks=False, strategy="ppo"),
}
"""By the words of the report."""


def run(case: Case, name: str, seed: int, evaluations: int, work: Path) -> list[float]:
    """The time of each config in the order measured, µs; infinite where it failed, or is illegal.

    Args:
        case: one of our own tables.
        name: a key of `VARIANTS`.
        seed: of the strategy; seeds take turns with the policies of different trainings.
        evaluations: different configs that may be tried.
        work: folder for trained policies.
    """
    variant, guide = VARIANTS[name], None
    space = case.space if variant.masks else SearchSpace(case.space.knobs, lambda config: True)
    if variant.training is not None:
        guide = _guide(case, name, seed % policies.TRAININGS, work)
        if not variant.masks:
            space = SearchSpace(space.knobs, lambda config: True, guide.candidates)
    start = known_from_others(guide, case.nearest if variant.nearest else ())
    # Unmasked, suggestions stay as they are; what others found best here is legal in any case or known not to be.
    unmasked = () if variant.masks else known_from_others(guide)
    legal = [config for config in start if case.space.is_legal(config) or config in unmasked]
    strategy = _strategy(variant, StrategyContext(space, seed, legal, variant.rewards, guide))
    result = tune(case.problem, space, strategy, case.runner, Budget(evaluations))
    return [inf if trial.measurement.us is None else trial.measurement.us for trial in result.trials]


def _strategy(variant: Variant, context: StrategyContext) -> Strategy:
    if context.guide is None:
        return make_strategy(variant.strategy, context)
    # JAX takes seconds to import, and who only reads the names does not need it.
    from cupygemm.search.strategies.guided import Guided

    class WithoutNeighbours(Guided):
        """The policy's ranking fills the batch."""

        def _offspring(self) -> list[KernelConfig]:
            return []

    kind = Guided if variant.neighbours else WithoutNeighbours
    hidden = context.guide.weights.hidden
    return kind(context, None if variant.learns else RefitOptions(hidden, steps=0))


@cache
def _guide(case: Case, name: str, training: int, work: Path) -> Guide:
    """The policy of a variant, told of a problem whose family it has not learnt from."""
    assert case.device is not None
    variant = VARIANTS[name]
    weights = _policy(case, variant, training, work)
    guide = Guide(weights, case.problem, case.device, case.space)
    if variant.masks:
        return guide
    near = SearchSpace(case.space.knobs, lambda config: True, _unmasked(case))
    likely = Guide(weights, case.problem, case.device, near).ranked(UNMASKED)
    return Guide(weights, case.problem, case.device, SearchSpace(case.space.knobs, lambda config: True, likely))


@cache
def _unmasked(case: Case) -> list[KernelConfig]:
    """All legal configs and what differs from one of them in one knob, legal or not: of the millions of the product
    those that come the nearest."""
    product, members = SearchSpace(case.space.knobs, lambda config: True), case.space.members or ()
    near = (each for member in members for each in product.neighbours(member, any_value=True))
    return list(dict.fromkeys((*members, *near)))


def _policy(case: Case, variant: Variant, seed: int, work: Path) -> PolicyWeights:
    """Trained for these rewards, where they differ on any of the tables; from its file where there is one."""
    assert variant.training is not None
    training = Training(case.folder, family(case.problem), seed, variant.training)
    usual, rewards = RewardWeights(), variant.rewards
    differs = rewards.l2 != usual.l2 or (rewards.spill != usual.spill and _spills(training))
    if not differs:
        return policies.policy(training, work)
    path = policies.path_of(training, work)
    path = path.with_stem(f"{path.stem}-{rewards.l2}-{rewards.spill}")
    if not path.exists():
        from cupygemm.search.policy.transfer_training import train

        path.parent.mkdir(parents=True, exist_ok=True)
        train(_tables(training), variant.training, seed, rewards).write(path)
    return PolicyWeights.read(path)


def _tables(training: Training) -> list[Table]:
    return [Table.read(each.path) for each in of_other_families(training.folder, training.family)]


@cache
def _spills(training: Training) -> bool:
    """Whether any config does that the policy learns from."""
    return any(row.spill_bytes for table in _tables(training) for row in table.rows.values())
