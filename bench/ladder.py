"""Steps towards a fast kernel, each a config, measured with the baselines in one interleaved run a problem.

    python -m bench.ladder headline squares -o bench/results/ladder.json --bundle tuned.yaml

docs/ladder.md and docs/small.md say what each step of bench/steps.py was expected to do; beside them stands the best
config of a problem's recorded table. The steps of grid_sample are suggestions of the policy that ships and guesses by
the estimate, or (--sooner) what was best before and configs that begin sooner; of them the fastest alone gets rows. The
fastest step of a problem goes into the bundle: by turns, or with --sustained by the geometric mean of both ways of
measuring.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import click

from bench.command import command_line
from bench.relatives import Best, bests, relatives
from bench.rows import over_cublas
from bench.steps import STEPS, Steps, best_of_table, sooner
from cupygemm.bundles.bundle import Bundle, BundleDevice, Entry, Measured, SearchInfo, new_bundle
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import H200
from cupygemm.errors import CupygemmError, VerificationError
from cupygemm.kernels import driver
from cupygemm.kernels.ahead import compile_ahead
from cupygemm.kernels.compiler import compile_kernel, source_digest
from cupygemm.kernels.kernel_plan import LoadedKernel, Plan
from cupygemm.kernels.operands import Launch
from cupygemm.legality import illegal_reason
from cupygemm.measurement import Measurement, Status
from cupygemm.measuring import provenance
from cupygemm.measuring.benchmark import OWN, result_row
from cupygemm.measuring.gpu_lock import holding_gpu
from cupygemm.measuring.measure import Bench
from cupygemm.measuring.results import times_document, write_results
from cupygemm.measuring.suites import SIXTEEN_BITS, SUITES
from cupygemm.measuring.timing import CUBLAS, CUBLASLT, QUICK, THOROUGH, Timing
from cupygemm.names import ROTATED, SUSTAINED
from cupygemm.problem import Problem
from cupygemm.search.guesses import guesses
from cupygemm.search.suggest import suggestions

GUESSED = "grid_sample"
"""A suite whose steps are suggested by search/suggest.py and guessed by search/guesses.py, by turns, or were best for
problems like these."""
STEPS_TRIED = 28
RELATIVES = 20
BEST_BEFORE = 3
SUGGESTED = 10
"""At most, of these; the others are guesses."""
FINALISTS = 3
"""That are measured thoroughly: those that are fastest in a short run."""


@click.command()
@click.argument("suites", nargs=-1, type=click.Choice([*STEPS, GUESSED]))
@click.option("--only", "shapes", multiple=True, metavar="MxNxK", help="Of the suites' problems. Repeatable.")
@click.option("--dtype", type=click.Choice(SIXTEEN_BITS), help="Of the suites' problems. Default: all.")
@click.option("--sustained", is_flag=True, help="Measure each step in blocks of its own as well.")
@click.option("--dependent", is_flag=True, help="Launch each step before the kernel before it ends; for no bundle.")
@click.option(
    "--after",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="Results or a survey: grid_sample tries what was best there for such problems. Repeatable.",
)
@click.option("--sooner", "is_sooner", is_flag=True, help="With --after: a few of those, and what begins sooner.")
@click.option("--bundle", "bundle_path", type=click.Path(path_type=Path), help="Gets the fastest steps.")
@click.option("--commit", help="Of the source, in place of what git says.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(
    suites: tuple[str, ...],
    shapes: tuple[str, ...],
    dtype: str | None,
    sustained: bool,
    dependent: bool,
    after: tuple[Path, ...],
    is_sooner: bool,
    bundle_path: Path | None,
    commit: str | None,
    output: Path,
) -> None:
    """Measures the steps of SUITES, by default of all that have steps of their own."""
    if dependent and bundle_path is not None:
        raise click.UsageError("--dependent with --bundle: what cuBLAS is compared with waits for the kernel before it")
    if is_sooner and not after:
        raise click.UsageError("--sooner without --after: it tries configs beside what was best before")
    known = bests(after)
    plan = [
        (
            problem,
            legal_steps(problem, steps_of(suite, problem, known, is_sooner)),
            FINALISTS if suite == GUESSED else None,
        )
        for suite in suites or STEPS
        for problem in SUITES[suite].problems
        if (not shapes or problem.shape in shapes) and dtype in (None, problem.a_dtype)
    ]
    # What cannot be compiled, `ready` meets again, and says so.
    compile_ahead((KernelSpec.of(problem), config) for problem, steps, _ in plan for config in steps.values())
    command = command_line("bench.ladder")
    facts = provenance.collect(0, command, commit)
    rows: list[dict[str, Any]] = []
    failures: list[dict[str, Any]] = []
    with holding_gpu(0):
        for problem, steps, most in plan:
            found: dict[str, list[dict[str, Any]]] = {}
            bench = Bench(problem)
            launches, errors = ready(bench, steps, dependent, failures)
            tried = len(launches)
            if most is not None:
                launches = fastest(bench, launches, most)
            for mode in (ROTATED, SUSTAINED) if sustained else (ROTATED,):
                for row in measured(bench, steps, launches, errors, mode, dependent):
                    found.setdefault(row["step"], []).append(row)
                    click.echo(f"{problem} {mode} {row['step']}: {over_cublas(row):.3f} of cuBLAS")
            best = max(found.values(), key=lambda each: prod(map(over_cublas, each)), default=[])
            kept = found.values() if most is None else [best]
            rows += sorted((row for each in kept for row in each), key=lambda row: str(row["mode"]))
            write_results(output, times_document(output.stem, command, facts, rows, failures=failures))
            if bundle_path is not None and best:
                _keep(bundle_path, _entry(problem, best[0], tried, facts), facts)
    if failures:
        sys.exit(1)


def steps_of(suite: str, problem: Problem, known: Sequence[Best] = (), is_sooner: bool = False) -> Steps:
    """Configs by name: those of the suite, then the best of the problem's table, which `legal_steps` gives a row only
    where it is none of them; or suggestions and guesses, named after what tells them apart.

    Args:
        known: what was best elsewhere, to be tried in their place.
        is_sooner: few of those, and `sooner`.
    """
    if suite in STEPS:
        return STEPS[suite] | best_of_table(problem)
    if is_sooner:
        return {_named(config): config for config in (*relatives(problem, known, BEST_BEFORE), *sooner(problem))}
    if known:
        return {_named(config): config for config in relatives(problem, known, RELATIVES)}
    by_turns = itertools.zip_longest(suggestions(problem, H200, SUGGESTED), guesses(problem, H200, STEPS_TRIED))
    found = dict.fromkeys(config for pair in by_turns for config in pair if config is not None)
    return {_named(config): config for config in itertools.islice(found, STEPS_TRIED)}


def _named(config: KernelConfig) -> str:
    c = config
    tile = f"{c.block_m}x{c.block_n}x{c.block_k}, {c.stages} stages, cluster {c.cluster_m}x{c.cluster_n}x{c.cluster_k}"
    how = f"{c.consumers} consumers{' by turns' if c.ping_pong else ''}, depth {c.wait_depth}, {c.store_stages} buffers"
    told = f"group {c.group}, L2 {c.l2_promotion} {c.keep_a} {c.keep_b} {c.keep_out}, {c.prefetch} prefetched"
    if c.cp_async_stages:
        told += f", {c.cp_async_stages} copied"
    return f"{tile}, {how}, {told}"


def fastest(bench: Bench, launches: Mapping[str, Launch], most: int) -> dict[str, Launch]:
    """Those that are fastest in a short run."""
    timing = bench.time(launches, QUICK)
    ranked = sorted(launches, key=lambda name: median(timing.samples_us[name]))
    return {name: launches[name] for name in ranked[:most]}


def legal_steps(problem: Problem, steps: Steps) -> Steps:
    """The steps that the problem's spec allows, each config once, by the first of its names."""
    spec = KernelSpec.of(problem)
    found: Steps = {}
    for name, config in steps.items():
        fitting = config if spec.out_aligned else config.swapped(store_stages=0, keep_out=0)
        if illegal_reason(fitting, spec, H200) is None and fitting not in found.values():
            found[name] = fitting
    return found


def ready(
    bench: Bench, steps: Mapping[str, KernelConfig], dependent: bool, failures: list[dict[str, Any]]
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
            kernel = LoadedKernel(compile_kernel(KernelSpec.of(problem), config))
            plan = Plan(problem, kernel, dependent_launch=dependent)
        except CupygemmError as error:
            failures.append({**problem.to_dict(), "step": name, "detail": str(error)})
            click.echo(f"{problem} {name}: {error}", err=True)
            continue
        verdict = bench.verify(plan.launch)
        if not verdict.ok:
            raise VerificationError(f"{problem} {name}: {verdict.detail}")
        launches[name], errors[name] = plan.launch, verdict.error
    return launches, errors


def measured(
    bench: Bench,
    steps: Mapping[str, KernelConfig],
    launches: Mapping[str, Launch],
    errors: Mapping[str, float],
    mode: str,
    dependent: bool,
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
            **result_row(bench.problem, own, error, steps[name], mode, bench.bytes_rotated(mode), dependent),
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
    config = KernelConfig.from_dict(row["config"])
    return Entry(
        problem=problem,
        config=config,
        measured=Measured.of(measurement, cublaslt_us=row["cublaslt_us"], spread=row["spread"]),
        search=SearchInfo(strategy="ladder", evaluations=tried),
        provenance={**facts, "source_digest": source_digest(config)},
    )


if __name__ == "__main__":
    main()
