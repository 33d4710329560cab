"""`BundleFile`: the bundle that a tuning run leaves its entry in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from cupygemm.atomic import check_writable, naming
from cupygemm.bundles.bundle import Bundle, BundleDevice, Entry, Measured, SearchInfo, new_bundle
from cupygemm.config import KernelConfig
from cupygemm.errors import BundleError
from cupygemm.measurement import Record
from cupygemm.problem import Problem
from cupygemm.search.target import Target

LOCK_S = 60.0
"""How long to wait for another process that writes the same bundle: each takes milliseconds."""


@dataclass(frozen=True)
class Saved:
    """What became of a result at its bundle.

    Attributes:
        path: the bundle.
        change: "added", "replaced", or "kept" where the entry that was there is the better one.
        before: the entry that was there for the problem.
    """

    path: Path
    change: str
    before: Entry | None


class BundleFile:
    """The file a result goes to. It is read before the search, so that a bad one costs no search.

    Attributes:
        path: where it is, or will be.
    """

    def __init__(self, path: Path, target: Target) -> None:
        """Reads what is there.

        Raises:
            BundleError: the file is no bundle, or holds configs of another device.
            OSError: no file can be written there.
        """
        self.path = path
        self._target = target
        check_writable(path)
        self._read()

    def replaces(self, problem: Problem) -> str | None:
        """Why the entry for a problem gives way to any new one; None where the better one stays, or there is none."""
        bundle = self._read()
        before = None if bundle is None else bundle.entry(problem)
        return None if bundle is None or before is None else self._why_it_gives_way(bundle, before)

    def add(self, best: Record, search: SearchInfo) -> Saved:
        """Puts the entry in, unless the one for the same problem is better and does not give way.

        The file is locked and read again: others may have added to it during the search.

        Raises:
            BundleError: the file has become something else since.
            OSError: the file cannot be written.
        """
        entry = self._entry(best, search)
        with naming(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self.path.with_name(f".{self.path.name}.lock"), timeout=LOCK_S):
                return self._merge(entry)

    def _merge(self, entry: Entry) -> Saved:
        bundle = self._read()
        before = None if bundle is None else bundle.entry(entry.problem)
        is_kept = bundle is not None and before is not None and self._why_it_gives_way(bundle, before) is None
        if before is not None and is_kept and not entry.beats(before):
            return Saved(self.path, "kept", before)
        device = BundleDevice.of(self._target.device, self._target.provenance)
        new = new_bundle(device, self._target.source_digest, [entry])
        (new if bundle is None else bundle.merged(new)).save(self.path)
        return Saved(self.path, "added" if before is None else "replaced", before)

    def _why_it_gives_way(self, bundle: Bundle, before: Entry) -> str | None:
        """What is wrong with an entry beside what is measured now, on a GPU; None for nothing, and on replay."""
        if self._target.recorded is not None:
            return None
        if before.is_recorded:
            return "was replayed"
        outdated = bundle.outdated(before, self._target.source_digest_of(before.config))
        return None if outdated is None else "is of other kernel sources"

    def _read(self) -> Bundle | None:
        """What the new entry joins; None where there is no file."""
        if not self.path.exists():
            return None
        bundle = Bundle.load(self.path)
        difference = bundle.device.difference(self._target.device)
        if difference is not None:
            there = bundle.device.name
            raise BundleError(f"{self.path}: holds configs of {there}: {difference}: write to another file")
        return bundle

    def _entry(self, best: Record, search: SearchInfo) -> Entry:
        target = self._target
        origin: dict[str, Any] = self._origin(best.config)
        known = {"cublaslt_us": self._cublaslt_us(best)}
        if target.recorded is not None:
            known["spread"] = target.recorded.rows[best.config].spread
            origin["replayed"] = True
        return Entry(
            problem=best.problem,
            config=best.config,
            measured=Measured.of(best.measurement, **known),
            search=search,
            provenance={**target.provenance, **origin},
        )

    def _origin(self, config: KernelConfig) -> dict[str, str]:
        """What the target's provenance does not say of a config that has a page of its own."""
        return {"source_digest": self._target.source_digest_of(config)} if config.cp_async_stages else {}

    def _cublaslt_us(self, best: Record) -> float | None:
        """The best cublasLt algorithm, at the clock of the config's rounds: it was timed with cuBLAS in others."""
        cublas_us, cublaslt_us = (self._target.baselines.get(name) for name in ("cublas_us", "cublaslt_us"))
        here = best.measurement.cublas_us
        return cublaslt_us * here / cublas_us if cublas_us and cublaslt_us and here else None
