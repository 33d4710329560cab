"""How the policy that serves many problems is trained, and learns anew within one: numbers alone, without JAX."""

from __future__ import annotations

from dataclasses import dataclass

from cupygemm.names import UPDATES


@dataclass(frozen=True)
class TrainingOptions:
    """How a policy is trained.

    Attributes:
        members: networks of which the policy is the mean: they differ in where they start and in what they draw.
        hidden: length of each of the two hidden layers.
        prior: weight of log2 of the estimate in a score at the start: -ln 2 / temperature would imitate it.
        cloning_steps: full-batch steps that imitate what was fast.
        cloning_rate: learning rate of the first of them; it falls to 0 along a cosine.
        weight_decay: of the same steps.
        temperature: of imitation: a config weighs exp(-log(time / least time) / temperature).
        updates: of PPO.
        draws: configs drawn for each problem in an update.
        epochs, clip, entropy, value, gae_lambda, max_gradient, target_kl: as in `PpoOptions`.
        ppo_rate: learning rate of PPO's Adam.
        reward_temperature: rewards enter as exp((reward - best) / temperature).
        kept: configs of each table that the policy may choose from where a space is too large to be walked.
    """

    members: int = 5
    hidden: int = 32
    prior: float = -7.0
    cloning_steps: int = 200
    cloning_rate: float = 1e-2
    weight_decay: float = 1e-2
    temperature: float = 0.1
    updates: int = UPDATES
    draws: int = 16
    epochs: int = 4
    clip: float = 0.2
    entropy: float = 0.01
    value: float = 0.5
    gae_lambda: float = 0.95
    max_gradient: float = 0.5
    target_kl: float = 0.05
    ppo_rate: float = 3e-4
    reward_temperature: float = 0.1
    kept: int = 256


@dataclass(frozen=True)
class RefitOptions:
    """How a trained policy learns from what is measured of one problem.

    Attributes:
        hidden: as the policy was trained with.
        steps: full-batch Adam steps, each time from the trained policy.
        rate: learning rate.
        tether: weight of the squared distance from the trained parameters.
        temperature: of imitation, as in `TrainingOptions`.
    """

    hidden: int
    steps: int = 30
    rate: float = 3e-3
    tether: float = 1e-2
    temperature: float = 0.05
