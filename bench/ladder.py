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
from cupygemm.measure import CUBLAS, CUBLASLT, THOROUGH, Bench, Timing
from cupygemm.measurement import Measurement, Status
from cupygemm.names import ROTATED, SUSTAINED
from cupygemm.operands import Launch
from cupygemm.plan import LoadedKernel, Plan
from cupygemm.problem import Problem
from cupygemm.results import times_document, write_results
from cupygemm.suites import SIXTEEN_BITS, SUITES

Steps = dict[str, KernelConfig]

# Tiles of 128x256 whose rows two consumers divide, and tiles that the consumers take by turns.
DIVIDED = KernelConfig(128, 256, 64, 4, 2, False, 1, 1, True, 4, 40, 0, 2)
TURNS = DIVIDED.swapped(block_n=128, stages=6, wait_depth=1, ping_pong=True)
WIDE = TURNS.swapped(block_n=192, stages=4)
TALL = TURNS.swapped(block_m=192, stages=4)
PROMOTED = {"l2_promotion": 128}
STREAMED = {"keep_out": -1}

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
}
"""By suite. Where rows of the result are no multiple of 16 bytes, a step stores from registers."""


@click.command()
@click.argument("suites", nargs=-1, type=click.Choice(list(STEPS)))
@click.option("--only", "shapes", multiple=True, metavar="MxNxK", help="Of the suites' problems. Repeatable.")
@click.option("--dtype", type=click.Choice(SIXTEEN_BITS), help="Of the suites' problems. Default: all.")
@click.option("--sustained", is_flag=True, help="Measure each step in blocks of its own as well.")
@click.option("--bundle", "bundle_path", type=click.Path(path_type=Path), help="Gets the fastest steps.")
@click.option("--commit", help="Of the source, where there is no git history.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(
    suites: tuple[str, ...],
    shapes: tuple[str, ...],
    dtype: str | None,
    sustained: bool,
    bundle_path: Path | None,
    commit: str | None,
    output: Path,
) -> None:
    """Measures the steps of SUITES, all by default."""
    named = [(problem, STEPS[suite]) for suite in suites or STEPS for problem in SUITES[suite].problems]
    plan = [
        (problem, _legal(problem, steps))
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
            for mode in (ROTATED, SUSTAINED) if sustained else (ROTATED,):
                for row in _measure(bench, steps, launches, errors, mode):
                    rows.append(row)
                    found.setdefault(row["step"], []).append(row)
                    click.echo(f"{problem} {mode} {row['step']}: {_ratio(row):.3f} of cuBLAS")
                write_results(output, times_document(output.stem, command, facts, rows, failures=failures))
            if bundle_path is not None and found:
                best = max(found.values(), key=lambda each: prod(map(_ratio, each)))
                _keep(bundle_path, _entry(problem, best[0], len(found), facts), facts)
    if failures:
        sys.exit(1)


def _ratio(row: Mapping[str, Any]) -> float:
    return float(row["cublas_us"] / row["cupygemm_us"])


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
    for name, error in errors.items():
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
