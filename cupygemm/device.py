"""What it runs on: `DeviceSpec`, plain data about a GPU (no driver is needed to have one)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True)
class DeviceSpec:
    """The properties of a GPU that legality and dispatch depend on.

    Attributes:
        name: as the CUDA driver reports it.
        compute_capability: (major, minor).
        sm_count: streaming multiprocessors that a kernel can use.
        shared_bytes: most shared memory of one block (opt-in limit).
        l2_bytes: size of the level-2 cache.
        clock_mhz: highest SM clock.
    """

    name: str
    compute_capability: tuple[int, int]
    sm_count: int
    shared_bytes: int
    l2_bytes: int
    clock_mhz: int

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        major, minor = fields["compute_capability"]
        return cls(**{**fields, "compute_capability": (int(major), int(minor))})

    def to_dict(self) -> dict[str, Any]:
        """Every field by name; the compute capability as a list, as JSON and YAML carry it."""
        return {**asdict(self), "compute_capability": list(self.compute_capability)}

    @property
    def is_hopper(self) -> bool:
        """Whether the kernels, which are built for sm_90a and nothing else, can run here."""
        return self.compute_capability == (9, 0)

    def clusters_at_once(self, size: int) -> int:
        """About how many clusters of `size` CTAs, one a SM, run at the same time: `Plan` asks the driver.

        GPCs have unequal numbers of SMs, and clusters of three or more leave some over: an H200 holds 66 of two, 30 of
        four and 15 of eight (2026-11).
        """
        usable = self.sm_count if size <= 2 else int(self.sm_count * 0.92)
        return max(1, usable // size)


# Read from cudaGetDeviceProperties on an NVIDIA H200, driver 580.159, 2026-11.
H200 = DeviceSpec("NVIDIA H200", (9, 0), sm_count=132, shared_bytes=232448, l2_bytes=62914560, clock_mhz=1980)
