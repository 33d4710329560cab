"""Steps towards a fast kernel, each a config, measured with the baselines in one interleaved run a problem.

    python bench/ladder.py headline squares -o bench/results/ladder.json --bundle tuned.yaml

docs/ladder.md says what each step was expected to do. The fastest step of a problem goes into the bundle: by turns, or
with --sustained by the geometric mean of both ways of measuring.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import click

from cupygemm import driver, provenance
from cupygemm.benchmark import OWN, result_row
from cupygemm.bundle import Bundle, BundleDevice, Entry, Measured, SearchInfo, new_bundle
from cupygemm.compiler import compile_kernel, source_digest
from cupygemm.config import KernelConfig, KernelSpec, illegal_reason
from cupygemm.device import H200
from cupygemm.errors import CupygemmError, VerificationError
from cupygemm.gpu_lock import holding_gpu
from cupygemm.measure import CUBLAS, CUBLASLT, QUICK, THOROUGH, Bench, Timing
from cupygemm.measurement import Measurement, Status
from cupygemm.names import ROTATED, SUSTAINED
from cupygemm.operands import Launch
from cupygemm.plan import LoadedKernel, Plan
from cupygemm.problem import Problem
from cupygemm.results import times_document, write_results
from cupygemm.search.model import guesses
from cupygemm.suites import SIXTEEN_BITS, SUITES

Steps = dict[str, KernelConfig]

# Tiles of 128x256 whose rows two consumers divide, and tiles that the consumers take by turns.
DIVIDED = KernelConfig(128, 256, 64, 4, 2, False, 1, 1, True, 4, 40, 0, 2)
TURNS = DIVIDED.swapped(block_n=128, stages=6, wait_depth=1, ping_pong=True)
WIDE = TURNS.swapped(block_n=192, stages=4)
TALL = TURNS.swapped(block_m=192, stages=4)
PROMOTED = {"l2_promotion": 128}
STREAMED = {"keep_out": -1}

# Small products: one consumer, or two of 64 rows each, and as many stages as fit.
SQUARE = KernelConfig(64, 64, 64, 12, 1, False, 1, 1, True, 1, 40, 1, 1)
TIPPED = SQUARE.swapped(block_m=128, stages=8, consumers=2)
BROAD = SQUARE.swapped(block_n=128, stages=8)
LARGER = TIPPED.swapped(block_n=128, stages=6)
DIRECT = {"store_stages": 0}
ONCE_B = {"keep_b": -1, **PROMOTED}
ONCE_A = {"keep_a": -1, **PROMOTED}

STEPS: dict[str, Steps] = {
    "headline": {
        "128x256": DIVIDED,
        "128x256, cluster 2x1": DIVIDED.swapped(cluster_m=2),
        "128x256, l2_promotion 128": DIVIDED.swapped(**PROMOTED),
        "128x256, 3 stages, 4 store buffers": DIVIDED.swapped(stages=3, store_stages=4),
        "128x128 by turns": TURNS,
        "128x128 by turns, l2_promotion 128": TURNS.swapped(**PROMOTED),
        "128x128 by turns, l2_promotion 128, group 1": TURNS.swapped(group=1, **PROMOTED),
    },
    "squares": {
        "128x256": DIVIDED.swapped(group=8),
        "128x256, cluster 2x1": DIVIDED.swapped(group=8, cluster_m=2),
        "128x128 by turns": TURNS.swapped(group=8),
        "128x128 by turns, keep_out -1": TURNS.swapped(group=8, **STREAMED),
        "128x192 by turns": WIDE.swapped(group=8),
        "128x192 by turns, group 4": WIDE,
        "128x192 by turns, l2_promotion 128": WIDE.swapped(group=8, **PROMOTED),
        "128x192 by turns, cluster 2x1": WIDE.swapped(cluster_m=2),
        "192x128 by turns": TALL,
    },
    "short_k": {
        "128x256": DIVIDED,
        "128x128 by turns": TURNS,
        "128x128 by turns, keep_out -1": TURNS.swapped(**STREAMED),
        "128x128 by turns, keep_out -1, l2_promotion 128": TURNS.swapped(**STREAMED, **PROMOTED),
        "128x128 by turns, keep_out -1, cluster 2x1": TURNS.swapped(cluster_m=2, **STREAMED),
        "128x192 by turns": WIDE,
        "128x192 by turns, keep_out -1": WIDE.swapped(**STREAMED),
        "128x192 by turns, keep_out -1, l2_promotion 128": WIDE.swapped(**STREAMED, **PROMOTED),
        "128x192 by turns, keep_out -1, cluster 2x1": WIDE.swapped(cluster_m=2, **STREAMED),
    },
    "ragged": {
        "128x256": DIVIDED,
        "128x256, l2_promotion 128": DIVIDED.swapped(**PROMOTED),
        "128x128 by turns": TURNS,
        "128x128 by turns, l2_promotion 128": TURNS.swapped(**PROMOTED),
        "128x128 by turns, l2_promotion 128, cluster 2x1": TURNS.swapped(cluster_m=2, **PROMOTED),
        "128x192 by turns, l2_promotion 128": WIDE.swapped(**PROMOTED),
        "128x192 by turns, l2_promotion 128, cluster 2x1": WIDE.swapped(cluster_m=2, **PROMOTED),
        "128x192 by turns, l2_promotion 128, cluster 2x1, group 1": WIDE.swapped(cluster_m=2, group=1, **PROMOTED),
    },
    "layouts": {
        "128x256": DIVIDED,
        "128x256, l2_promotion 128": DIVIDED.swapped(**PROMOTED),
        "128x128 by turns, l2_promotion 128": TURNS.swapped(**PROMOTED),
        "128x128 by turns, l2_promotion 128, group 8": TURNS.swapped(group=8, **PROMOTED),
    },
    "small": {
        "64x64": SQUARE,
        "64x64, 2 stages prefetched": SQUARE.swapped(prefetch=2),
        "64x64, stored from registers": SQUARE.swapped(**DIRECT),
        "64x64, 2 slices of K": SQUARE.swapped(cluster_k=2),
        "128x64": TIPPED,
        "128x64, group 4": TIPPED.swapped(group=4),
        "128x64, cluster 1x2": TIPPED.swapped(cluster_n=2),
        "128x64, 3 store buffers": TIPPED.swapped(stages=7, store_stages=3),
        "64x128": BROAD,
        "64x128, group 4": BROAD.swapped(group=4),
        "128x128": LARGER,
        "128x128, 2 slices of K": LARGER.swapped(cluster_k=2, stages=5),
    },
    "splitk": {
        "64x64": SQUARE,
        "64x64, 2 slices of K": SQUARE.swapped(cluster_k=2, **DIRECT),
        "64x64, 4 slices of K": SQUARE.swapped(cluster_k=4, **DIRECT),
        "64x64, 8 slices of K": SQUARE.swapped(cluster_k=8, **DIRECT),
        "64x64, 8 slices of K, stored by TMA": SQUARE.swapped(cluster_k=8),
        "64x64, 8 slices of K, stages of 128": SQUARE.swapped(cluster_k=8, block_k=128, stages=4, **DIRECT),
        "64x64, 8 slices of K, 2 stages prefetched": SQUARE.swapped(cluster_k=8, prefetch=2, **DIRECT),
        "64x32, 8 slices of K, 2 stages prefetched": SQUARE.swapped(block_n=32, cluster_k=8, prefetch=2, **DIRECT),
        "64x16, 8 slices of K, 2 stages prefetched": SQUARE.swapped(block_n=16, cluster_k=8, prefetch=2, **DIRECT),
        "64x128, 8 slices of K": BROAD.swapped(cluster_k=8, **DIRECT),
        "128x64, 3 slices of K, cluster 1x2": TIPPED.swapped(cluster_n=2, cluster_k=3, **DIRECT),
        "128x64, 2 slices of K, cluster 1x2": TIPPED.swapped(cluster_n=2, cluster_k=2, **DIRECT),
        "128x128, 5 slices of K": LARGER.swapped(cluster_k=5, stages=5, **DIRECT),
        "128x128, 4 slices of K": LARGER.swapped(cluster_k=4, stages=5, **DIRECT),
    },
    "skinny": {
        "64x64": SQUARE.swapped(**PROMOTED),
        "64x64, B read once": SQUARE.swapped(**ONCE_B),
        "64x64, B read once, 4 stages prefetched": SQUARE.swapped(prefetch=4, **ONCE_B),
        "64x64, B read once, 12 stages prefetched": SQUARE.swapped(prefetch=12, **ONCE_B),
        "64x64, B read once, stored from registers": SQUARE.swapped(prefetch=4, **ONCE_B, **DIRECT),
        "64x64, B read once, 2 slices of K": SQUARE.swapped(cluster_k=2, prefetch=4, **ONCE_B),
        "64x64, B read once, cluster 2x1": SQUARE.swapped(cluster_m=2, prefetch=2, **ONCE_B),
        "128x64, B read once, 2 slices of K": TIPPED.swapped(cluster_k=2, prefetch=4, **ONCE_B),
        "64x256, B read once, cluster 2x1": SQUARE.swapped(block_n=256, stages=5, cluster_m=2, **ONCE_B),
        "128x128, B read once": LARGER.swapped(prefetch=2, **ONCE_B),
        "128x128, B read once, cluster 1x4": LARGER.swapped(cluster_n=4, prefetch=2, **ONCE_B),
        "128x64, A read once": TIPPED.swapped(**ONCE_A),
        "128x64, A read once, stages of 128": TIPPED.swapped(block_k=128, stages=4, **ONCE_A, **DIRECT),
        "128x128, keep_out -1, 4 store buffers": LARGER.swapped(stages=4, store_stages=4, **STREAMED),
        "128x192 by turns, keep_out -1": WIDE.swapped(stages=3, **STREAMED),
        "128x256, keep_out -1, 4 store buffers": DIVIDED.swapped(stages=2, store_stages=4, **STREAMED),
    },
}
"""By suite. Where rows of the result are no multiple of 16 bytes, a step stores from registers."""
GUESSED = "grid_sample"
"""A suite whose steps are guesses of search/model.py: those that are fastest in a short run."""
GUESSES = 40
FINALISTS = 4


@click.command()
@click.argument("suites", nargs=-1, type=click.Choice([*STEPS, GUESSED]))
@click.option("--only", "shapes", multiple=True, metavar="MxNxK", help="Of the suites' problems. Repeatable.")
@click.option("--dtype", type=click.Choice(SIXTEEN_BITS), help="Of the suites' problems. Default: all.")
@click.option("--sustained", is_flag=True, help="Measure each step in blocks of its own as well.")
@click.option("--dependent", is_flag=True, help="Measure each step with dependent launch instead; for no bundle.")
@click.option("--bundle", "bundle_path", type=click.Path(path_type=Path), help="Gets the fastest steps.")
@click.option("--commit", help="Of the source, where there is no git history.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(
    suites: tuple[str, ...],
    shapes: tuple[str, ...],
    dtype: str | None,
    sustained: bool,
    dependent: bool,
    bundle_path: Path | None,
    commit: str | None,
    output: Path,
) -> None:
    """Measures the steps of SUITES, all by default."""
    if dependent and bundle_path is not None:
        raise click.UsageError("--dependent with --bundle: what cuBLAS is compared with waits for the kernel before it")
    named = [(problem, _steps(suite, problem)) for suite in suites or STEPS for problem in SUITES[suite].problems]
    plan = [
        (problem, _legal(problem, _dependent(steps) if dependent else steps))
        for problem, steps in named
        if (not shapes or problem.shape in shapes) and dtype in (None, problem.a_dtype)
    ]
    with ProcessPoolExecutor() as pool:
        list(pool.map(_compile, [(problem, config) for problem, steps in plan for config in steps.values()]))
    command = shlex.join(["python", *sys.argv])
    facts = provenance.collect(0, command, commit)
    rows: list[dict[str, Any]] = []
    failures: list[dict[str, Any]] = []
    with holding_gpu(0):
        for problem, steps in plan:
            found: dict[str, list[dict[str, Any]]] = {}
            bench = Bench(problem)
            launches, errors = _ready(bench, steps, failures)
            tried, launches = len(launches), _finalists(bench, launches)
            for mode in (ROTATED, SUSTAINED) if sustained else (ROTATED,):
                for row in _measure(bench, steps, launches, errors, mode):
                    rows.append(row)
                    found.setdefault(row["step"], []).append(row)
                    click.echo(f"{problem} {mode} {row['step']}: {_ratio(row):.3f} of cuBLAS")
                write_results(output, times_document(output.stem, command, facts, rows, failures=failures))
            if bundle_path is not None and found:
                best = max(found.values(), key=lambda each: prod(map(_ratio, each)))
                _keep(bundle_path, _entry(problem, best[0], tried, facts), facts)
    if failures:
        sys.exit(1)


def _ratio(row: Mapping[str, Any]) -> float:
    return float(row["cublas_us"] / row["cupygemm_us"])


def _steps(suite: str, problem: Problem) -> Steps:
    if suite in STEPS:
        return STEPS[suite]
    return {f"guess {index}": config for index, config in enumerate(guesses(problem, H200, GUESSES))}


def _finalists(bench: Bench, launches: Mapping[str, Launch]) -> dict[str, Launch]:
    """All steps, or where they are many the fastest ones in a short run."""
    if len(launches) < GUESSES // 2:
        return dict(launches)
    timing = bench.time(launches, QUICK)
    fastest = sorted(launches, key=lambda name: median(timing.samples_us[name]))
    return {name: launches[name] for name in fastest[:FINALISTS]}


def _dependent(steps: Steps) -> Steps:
    return {f"{name}, dependent launch": config.swapped(dependent_launch=True) for name, config in steps.items()}


def _legal(problem: Problem, steps: Steps) -> Steps:
    """The steps that the problem's spec allows, each config once."""
    spec = KernelSpec.of(problem)
    found: Steps = {}
    for name, config in steps.items():
        fitting = config if spec.out_aligned else config.swapped(store_stages=0, keep_out=0)
        if illegal_reason(fitting, spec, H200) is None and fitting not in found.values():
            found[name] = fitting
    return found


def _compile(kernel: tuple[Problem, KernelConfig]) -> None:
    problem, config = kernel
    with contextlib.suppress(CupygemmError):  # `_ready` meets it again, and says so
        compile_kernel(KernelSpec.of(problem), config)


def _ready(
    bench: Bench, steps: Mapping[str, KernelConfig], failures: list[dict[str, Any]]
) -> tuple[dict[str, Launch], dict[str, float]]:
    """What each step launches, and its error against float64; steps that do not run become failures.

    Raises:
        VerificationError: a step is wrong.
    """
    problem = bench.problem
    launches: dict[str, Launch] = {}
    errors: dict[str, float] = {}
    for name, config in steps.items():
        try:
            plan = Plan(problem, LoadedKernel(compile_kernel(KernelSpec.of(problem), config)))
        except CupygemmError as error:
            failures.append({**problem.to_dict(), "step": name, "detail": str(error)})
            click.echo(f"{problem} {name}: {error}", err=True)
            continue
        verdict = bench.verify(plan.launch)
        if not verdict.ok:
            raise VerificationError(f"{problem} {name}: {verdict.detail}")
        launches[name], errors[name] = plan.launch, verdict.error
    return launches, errors


def _measure(
    bench: Bench,
    steps: Mapping[str, KernelConfig],
    launches: Mapping[str, Launch],
    errors: Mapping[str, float],
    mode: str,
) -> Iterator[dict[str, Any]]:
    """A row a step, of one run with cuBLAS and the best cublasLt algorithm."""
    best = bench.cublaslt(mode)
    baselines = {} if best is None else {CUBLASLT: best.run}
    timing = bench.time({**launches, **baselines}, THOROUGH, mode)
    for name in launches:
        error = errors[name]
        samples = {OWN: timing.samples_us[name], **{key: timing.samples_us[key] for key in (*baselines, CUBLAS)}}
        # By turns there is one clock, which all make together.
        own = Timing(samples, timing.readings.get(name, timing.reading))
        yield {
            "step": name,
            **result_row(bench.problem, own, error, steps[name], mode, bench.bytes_rotated(mode)),
        }


def _keep(path: Path, entry: Entry, facts: dict[str, Any]) -> None:
    """Adds an entry to a bundle, unless the one for its problem is the better one."""
    before = Bundle.load(path).entry(entry.problem) if path.exists() else None
    if before is not None and not entry.beats(before):
        return
    new = new_bundle(BundleDevice.of(driver.device_spec(0), facts), source_digest(), [entry])
    (Bundle.load(path).merged(new) if path.exists() else new).save(path)


def _entry(problem: Problem, row: Mapping[str, Any], tried: int, facts: dict[str, Any]) -> Entry:
    """What a bundle says of the best step."""
    measurement = Measurement(
        Status.OK,
        samples_us=(row["cupygemm_us"],),
        baseline_us=(row["cublas_us"],),
        error=row["error"],
        clock_mhz=row["sm_clock_mhz"],
    )
    return Entry(
        problem=problem,
        config=KernelConfig.from_dict(row["config"]),
        measured=Measured.of(measurement, cublaslt_us=row["cublaslt_us"], spread=row["spread"]),
        search=SearchInfo(strategy="ladder", evaluations=tried),
        provenance=facts,
    )


if __name__ == "__main__":
    main()
