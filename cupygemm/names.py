"""Names and defaults that `--help` tells and heavier modules go by, said once: help must not import those."""

from __future__ import annotations

STRATEGIES = {
    "random": "cupygemm.search.strategies.random_search:RandomSearch",
    "exhaustive": "cupygemm.search.strategies.exhaustive:Exhaustive",
    "local": "cupygemm.search.strategies.local:LocalSearch",
    "cma": "cupygemm.search.strategies.cma:CmaEs",
    "ppo": "cupygemm.search.strategies.ppo:Ppo",
    "hybrid": "cupygemm.search.strategies.hybrid:hybrid",
}
"""Name → module and class. Modules are named, not imported: each may need a package that the others do not."""
SEEDED = ("local", "cma", "ppo", "hybrid")
"""Strategies that can start from configs known to be good elsewhere."""
LEARNING = ("ppo", "hybrid")
"""Strategies that maximise a reward; the others look at times alone."""
SEARCH_PACKAGES = ("cmaes", "flax", "jax", "optax", "pebble")
"""What the extra `search` installs."""
GUIDED, UNGUIDED, PLAINEST = "hybrid", "cma", "local"
"""What searches where none is named: with a policy that has not learnt from the problem, without one, and where what
the first or the second needs is not installed."""
POPULATION_EVALUATIONS = 32
"""Different configs that the population search of `hybrid` measures before the policy takes over, without a guide."""
NEEDED = {
    "cma": ("cmaes",),
    "ppo": ("flax", "jax", "optax"),
    "hybrid": ("cmaes", "flax", "jax", "optax"),
}
"""What strategies import of these packages; those without a line import none."""

L2_TERMS = ("bytes", "hit_rate")
"""What the L2 term of a reward is: compulsory over actual bytes of device memory, which is the default, or the share
of requests that the L2 answers."""
L2_WEIGHT = 0.02
SPILL_WEIGHT = 0.05

FAMILIES = ("small", "splitk", "skinny", "square", "short_k")
"""Of problems that are alike; `search/policy/families.py` says which are."""
UPDATES = 20
"""Of PPO, after the imitation, where a policy is trained."""

CORE, LARGE, SMALL = SUBSPACES = ("core", "large", "small")
"""What `cupygemm record` can measure whole."""
TABLE_SUFFIX = ".jsonl.gz"
"""How the name of a recorded table ends."""

ROTATED, RESIDENT, SUSTAINED = MODES = ("rotated", "resident", "sustained")
"""How times are taken. Candidates take turns graph by graph, their operands out of the L2 or in it if they fit; or each
has the GPU for itself for a while, operands out of the L2, so that its own power decides the clock."""
DEFAULT_MODES = (ROTATED, RESIDENT)
PLOT_SUFFIXES = (".png", ".svg", ".pdf")
"""Formats of pictures."""
