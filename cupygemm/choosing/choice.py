"""`Choice`: which kernel would run a product, and why, in words for a person."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cupygemm.bundles.bundle import Entry
from cupygemm.config import KernelConfig
from cupygemm.problem import Problem
from cupygemm.text import count


@dataclass(frozen=True)
class Choice:
    """What would run a product, and why.

    Attributes:
        kernel: "own" or "cublas".
        reason: one line for a person.
        problem: the product as cupygemm sees it; None where it is none of its kind.
        config: the config that would run; None for cuBLAS.
        bundle: where the entry comes from.
        entry: what decided: with the times that its config, or cuBLAS, was chosen for.
    """

    kernel: str
    reason: str
    problem: Problem | None = None
    config: KernelConfig | None = None
    bundle: str | None = None
    entry: Entry | None = None

    def __str__(self) -> str:
        what = "the operands" if self.problem is None else str(self.problem)
        lines = [
            f"{what}: {'own kernel' if self.kernel == 'own' else 'cupy.matmul (cuBLAS)'}",
            f"  because {self.reason}",
        ]
        if self.problem is not None:
            lines.append(f"  {_layout_words(self.problem.layout)}")
        if self.config is not None:
            lines.append("  " + " ".join(f"{name}={value}" for name, value in self.config.to_dict().items()))
        if self.entry is not None:
            lines += [f"  {line}" for line in _entry_words(self.entry)]
        return "\n".join(lines)


def _layout_words(layout: str) -> str:
    stored = {"n": "stored row-major", "t": "stored transposed"}
    return f"layout {layout}: A {stored[layout[0]]}, B {stored[layout[1]]}"


def _entry_words(entry: Entry) -> Iterator[str]:
    """What was measured of an entry's config, and how it was found."""
    measured, search = entry.measured, entry.search
    facts = [f"{measured.us:.2f} µs a launch"]
    if entry.speedup is not None:
        facts.append(f"{entry.speedup:.3f}× cuBLAS")
    if measured.cublaslt_us is not None:
        facts.append(f"{measured.cublaslt_us / measured.us:.3f}× the best cublasLt")
    if measured.registers is not None:
        facts.append(f"{measured.registers} registers a thread at launch")
    if measured.spill_bytes:
        facts.append(f"{measured.spill_bytes} bytes spilled a thread")
    yield f"measured: {', '.join(facts)}"
    yield f"found by {search.strategy}, {count(search.evaluations, 'evaluation')}"
