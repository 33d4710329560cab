"""`import cupygemm` is cheap and brings in nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LIMIT_MS = 50
TRIES = 5
HEAVY = ("cuda", "cupy", "flax", "jax", "numpy", "optax", "pydantic", "pynvml", "rich", "yaml")

PROBE = """
import time
start = time.process_time()
import cupygemm
elapsed_ms = (time.process_time() - start) * 1e3
import json, sys
print(json.dumps({"elapsed_ms": elapsed_ms, "modules": sorted(sys.modules)}))
"""


def probe() -> dict:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_importing_takes_less_than_50_ms():
    # Of the processor, and the least of a few tries: a busy machine makes any late, and nothing makes one early.
    assert min(probe()["elapsed_ms"] for _ in range(TRIES)) < LIMIT_MS


@pytest.mark.parametrize("heavy", HEAVY)
def test_importing_brings_in_nothing_heavy(heavy, modules):
    assert heavy not in modules


@pytest.fixture(scope="module")
def modules() -> set[str]:
    return set(probe()["modules"])
