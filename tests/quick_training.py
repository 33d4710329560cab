"""How tests train a policy: enough to tell configs apart, in a second."""

from __future__ import annotations

from cupygemm.search.policy.transfer_options import TrainingOptions

QUICK = TrainingOptions(members=2, hidden=8, cloning_steps=300, updates=3, kept=64)
