"""Hardware counters of kernels, read by Nsight Compute: a program is run under `ncu`, which replays its kernels.

Replaying changes the times, so nothing read here is compared with what is timed elsewhere. Clocks are left as they are;
caches are emptied before each replay, so that operands come from device memory as when they are rotated.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
from collections.abc import Sequence

from cupygemm.errors import LaunchError

L2_HIT_PCT = "lts__t_sector_hit_rate.pct"
DRAM_READ_BYTES = "dram__bytes_read.sum"
DRAM_WRITE_BYTES = "dram__bytes_write.sum"
DEADLINE_S = 300.0


def read_counters(
    command: Sequence[str], metrics: Sequence[str], kernels: str, stdin: str | None = None
) -> list[dict[str, str]]:
    """Runs a program and reads metrics of those of its kernels whose mangled name matches, in the order launched.

    Args:
        command: the program and its arguments.
        metrics: names, as `ncu --query-metrics` gives them.
        kernels: regular expression.
        stdin: what the program reads.

    Returns:
        A dictionary a launch: "Kernel Name", and the metrics as text.

    Raises:
        LaunchError: there is no ncu, it may not read counters here, or the program failed.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise LaunchError("counters need Nsight Compute: ncu is not on the PATH")
    call = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"]
    call += ["--metrics", ",".join(metrics), "--kernel-name-base", "mangled", "-k", f"regex:{kernels}"]
    try:
        done = subprocess.run(
            [*call, *command], input=stdin, capture_output=True, text=True, check=False, timeout=DEADLINE_S
        )
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"ncu was not done after {DEADLINE_S:.0f} s") from error
    if done.returncode != 0:
        raise LaunchError(f"ncu ended with status {done.returncode}: {done.stdout[-400:]}{done.stderr[-400:]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if not lines:
        raise LaunchError(f"ncu profiled no kernel named like {kernels}: {done.stdout[-400:]}")
    header, _units, *rows = csv.reader(lines)
    return [dict(zip(header, row, strict=True)) for row in rows]


def number(text: str) -> float | None:
    """A metric's value; None where it has none."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
