"""What a learning strategy is rewarded for: speed first, then few bytes from device memory and no spills."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cupygemm.errors import ConfigError
from cupygemm.measurement import Measurement
from cupygemm.names import L2_TERMS, L2_WEIGHT, SPILL_WEIGHT

WORST = -3.0
"""Least reward, and that of everything that did not run: twenty times slower than cuBLAS."""
FULL_SPILL_BYTES = 512
"""Spill bytes of a thread that count as one whole spill term."""


@dataclass(frozen=True)
class RewardWeights:
    """How the parts of a reward are weighed against the logarithm of the speed-up over cuBLAS.

    The defaults let neither part outweigh a difference in speed that can be measured: all of the L2 term counts like
    2% of speed, a thread that spills 512 bytes like 5%.

    Attributes:
        l2: weight of the L2 term, which is from 0 to 1.
        spill: weight of the spill term, which is from 0 to 1.
        l2_term: one of `names.L2_TERMS`. A hit rate punishes multicast, which asks for less.

    Raises:
        ConfigError: a negative or infinite weight, or another L2 term.
    """

    l2: float = L2_WEIGHT
    spill: float = SPILL_WEIGHT
    l2_term: str = L2_TERMS[0]

    def __post_init__(self) -> None:
        for name in ("l2", "spill"):
            weight = getattr(self, name)
            if not (weight >= 0 and math.isfinite(weight)):
                raise ConfigError(f"reward: weight {name} is {weight}: it must be a number of at least 0")
        if self.l2_term not in L2_TERMS:
            raise ConfigError(f"reward: l2_term is {self.l2_term!r}: legal values are {', '.join(L2_TERMS)}")

    def reward(self, measurement: Measurement, baseline_us: float) -> float:
        """log(cublas_us / us) + l2 · L2 term − spill · spill term, and at least `WORST`; never NaN.

        Args:
            measurement: of any status. A term that it does not have counts as 0.
            baseline_us: stands for cuBLAS's time where that was not measured; it has to be the same for all that are
                compared.
        """
        us = measurement.us
        if us is None or not (us > 0 and math.isfinite(us)):
            return WORST
        speed = math.log((measurement.cublas_us or baseline_us) / us)
        l2 = measurement.l2_term if self.l2_term == "bytes" else measurement.l2_hit_rate
        spill = min(1.0, (measurement.spill_bytes or 0) / FULL_SPILL_BYTES)
        return max(WORST, speed + self.l2 * (l2 or 0.0) - self.spill * spill)
