"""The GPU tests in several processes on one GPU, and one report of them: `tests/gpu` in a quarter of the time.

    python -m bench.correctness -o bench/results/correctness.json [--jobs 5] [--limit SECONDS]

Kernels are compiled first, on all cores. What times or counts on the GPU runs after the others, by itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from bench.shared.command import Program, command_line
from cupygemm.kernels import driver
from cupygemm.measuring import provenance
from cupygemm.measuring.results import write_report

TESTS = Path(__file__).parent.parent / "tests" / "gpu"
ALONE = ("test_counted.py", "test_warmup.py")
"""What other processes on the GPU, or on all cores, would spoil."""
LONG = ("test_correctness.py", "test_cupy_suite.py", "test_semantics.py", "test_variants.py", "test_launches.py")
"""Begun first."""


@dataclass
class Total:
    """What became of the tests so far."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("passed", "failed", "skipped"), 0))
    verified: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, report: dict[str, Any] | None, detail: str) -> None:
        """Counts a file in; without a report it has failed as a whole."""
        if report is None:
            self.counts["failed"] += 1
            self.failures.append({"test": name, "reason": detail})
            return
        for outcome in self.counts:
            self.counts[outcome] += report["summary"][outcome]
        self.verified += report["summary"]["products_verified"]
        self.failures += report["failures"]


@click.command(cls=Program)
@click.option("--jobs", default=5, show_default=True, help="Processes at once.")
@click.option("--limit", default=600.0, show_default=True, help="Seconds for all of it; what is left then has failed.")
@click.option("--commit", help="Of the source, in place of what git says.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(jobs: int, limit: float, commit: str | None, output: Path) -> None:
    """Runs the GPU tests, file by file, and writes one report."""
    end = time.monotonic() + limit
    files = sorted(TESTS.glob("test_*.py"), key=lambda path: (path.name not in LONG, path.name))
    together = [path for path in files if path.name not in ALONE]
    compile_ahead()
    total = Total()
    with tempfile.TemporaryDirectory() as folder:

        def run(path: Path) -> tuple[Path, dict[str, Any] | None, str]:
            return path, *run_file(path, Path(folder), end - time.monotonic())

        for group, workers in ((together, jobs), ([path for path in files if path.name in ALONE], 1)):
            with ThreadPoolExecutor(workers) as pool:
                for path, report, detail in pool.map(run, group):
                    total.add(path.name, report, detail)
                    click.echo(f"{path.name}: {detail.splitlines()[-1] if detail else 'no word'}")
    command = command_line("bench.correctness")
    device = 0 if driver.hopper_devices() else None
    summary = {**total.counts, "products_verified": total.verified}
    write_report(output, "correctness", command, provenance.collect(device, command, commit), summary, total.failures)
    sys.exit(1 if total.counts["failed"] else 0)


def compile_ahead() -> None:
    """All kernels that the protocol names: in a process that ends, so that it holds nothing of the GPU."""
    work = (
        "from tests.gpu.protocol import Kernels, all_pairs, variant_pairs\n"
        "kernels = Kernels()\nkernels.ahead(all_pairs())\nkernels.ahead(variant_pairs())\n"
    )
    subprocess.run([sys.executable, "-c", work], cwd=TESTS.parent.parent, check=True)


def run_file(path: Path, folder: Path, seconds: float) -> tuple[dict[str, Any] | None, str]:
    """The report of a file's tests, None where there is none, and the last lines that pytest wrote."""
    report = folder / f"{path.stem}.json"
    # Each has its own lock on the GPU, which would make them wait for one another.
    environment = {**os.environ, "CUPYGEMM_DATA_DIR": str(folder / f"data-{path.stem}"), "CUPYGEMM_REQUIRE_GPU": "1"}
    words = ["-m", "pytest", "-q", "-m", "gpu", str(path), "--report", str(report), "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=TESTS.parent.parent,
            env=environment,
            capture_output=True,
            text=True,
            timeout=max(1.0, seconds),
        )
    except subprocess.TimeoutExpired:
        return None, "out of time"
    tail = "\n".join((done.stdout or done.stderr).strip().splitlines()[-40:])
    return (json.loads(report.read_text(encoding="utf-8")) if report.exists() else None), tail


if __name__ == "__main__":
    main()
