"""What a bundle says that cannot be true: `findings`, beyond what its schema already refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cupygemm.bundles.bundle import Bundle, BundleDevice, Entry
from cupygemm.config import KernelSpec
from cupygemm.device import H200, DeviceSpec
from cupygemm.kernels.kernel_plan import MAX_EXTENT
from cupygemm.legality import illegal_reason

TOLERANCE = 0.01
"""By how much of it a speedup may differ from the times beside it: they are rounded when edited by hand."""


def findings(bundle: Bundle) -> list[str]:
    """A line for each thing that is wrong with an entry: a config that cannot run, times that contradict."""
    device = spec_of(bundle.device)
    return [
        f"entries[{i}] ({entry.problem}): {reason}"
        for i, entry in enumerate(bundle.entries)
        for reason in _reasons(entry, device)
    ]


def spec_of(device: BundleDevice) -> DeviceSpec:
    """The device as far as the bundle tells, else an H200: Hopper GPUs have the same shared memory."""
    major, minor = device.compute_capability
    return replace(H200, name=device.name, compute_capability=(major, minor), sm_count=device.sm_count)


def _reasons(entry: Entry, device: DeviceSpec) -> Iterator[str]:
    problem, measured = entry.problem, entry.measured
    for name in ("m", "n", "k", "batch"):
        if getattr(problem, name) > MAX_EXTENT:
            yield f"{name} is {getattr(problem, name)}: kernels take at most {MAX_EXTENT}"
    illegal = illegal_reason(entry.config, KernelSpec.of(problem), device)
    if illegal is not None:
        yield f"its config cannot run: {illegal}"
    if measured.speedup is not None and measured.cublas_us is not None:
        speedup = measured.cublas_us / measured.us
        if abs(measured.speedup - speedup) > TOLERANCE * speedup:
            yield f"speedup is {measured.speedup:.3f}, but cublas_us / us is {speedup:.3f}"
