"""Which kernel runs a product: the bundles in force, the plans made so far, and the reason when it is cuBLAS.

A problem is decided once; calls like one before are answered by `repeats`. Everything that may be slow (reading a
bundle, compiling, loading a cubin: `loading`) happens at the first call for a problem on a device, never while a CUDA
graph is being captured.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from cupygemm.bundles.bundle import Bundle, Entry
from cupygemm.bundles.in_force import InForce, Source
from cupygemm.choosing.choice import Choice
from cupygemm.choosing.defaults import default_config
from cupygemm.choosing.estimate import estimated_us
from cupygemm.choosing.forecast import Prediction
from cupygemm.choosing.unseen import UnseenShapes
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.device import DeviceSpec
from cupygemm.epilogue import NONE
from cupygemm.errors import CompileError, ConfigError, LaunchError, ProblemError
from cupygemm.kernels import compiler, driver
from cupygemm.kernels.capture import is_capturing
from cupygemm.kernels.compiling import PACKING, Job, StillCompiling, compiles_in_background
from cupygemm.kernels.kernel_plan import Plan, oversize_reason
from cupygemm.kernels.loading import Kernels
from cupygemm.legality import illegal_reason
from cupygemm.problem import Problem
from cupygemm.views.reading import problem_of

log = logging.getLogger(__name__)

Make = Callable[[KernelConfig], Plan | None]
"""Makes a plan with a config, or nothing where it is only asked whether it could; raises one of `UNUSABLE`."""
UNUSABLE = (CompileError, ConfigError, LaunchError, ProblemError)
"""What keeps a config from running."""
_NO_CONFIG = "no bundle in force has a config for it"
CLEARLY = 1.1
"""Times as long, by an estimate that is coarse."""


class Dispatcher:
    """The state behind `matmul`: bundles, newest first, and a plan for each (problem, device) seen.

    Safe from several threads. What is under the lock is brief: while one waits for a kernel, others decide and launch,
    and bundles come and go.

    Attributes:
        generation: another number whenever bundles have come or gone.
        kernels: those that are loaded, of whatever bundle.
    """

    def __init__(
        self,
        only: Mapping[str, Bundle] | None = None,
        even_slower: bool = False,
        kernels: Kernels | None = None,
        in_background: bool = False,
    ) -> None:
        """Nothing is read or compiled yet.

        Args:
            only: bundles by name, the first one asked first, in place of the environment's and the shipped one.
            even_slower: whether a config runs that was measured to be slower than cuBLAS: for measuring it again.
            kernels: of another dispatcher, which gets what is loaded here; None for its own.
            in_background: whether kernels are compiled in the background, and cuBLAS runs meanwhile, where
                CUPYGEMM_COMPILE says so. What measures waits for the kernel.
        """
        self._lock = threading.RLock()
        self._in_force = InForce(only)
        self._even_slower = even_slower
        self._unseen = UnseenShapes()
        self._chosen: dict[tuple[Problem, int, bool], tuple[Choice, Plan | None]] = {}
        self._meanwhile: dict[tuple[Problem, int, bool], tuple[Choice, Job]] = {}
        self._logged: set[tuple[str, str]] = set()
        self._passed_over: set[tuple[str, Problem, str]] = set()
        self._in_background = in_background
        self.kernels = kernels or Kernels()
        self.generation = 0

    def push(self, bundle: Bundle, name: str) -> object:
        """Puts a bundle before those in force; gives a token for `remove`."""
        with self._lock:
            source = self._in_force.push(bundle, name)
            self._forget()
        return source

    def remove(self, token: object) -> None:
        """Takes a bundle out again; one that is no longer in force is ignored."""
        with self._lock:
            self._in_force.remove(token)
            self._forget()

    def _forget(self) -> None:
        self._chosen, self._meanwhile, self._passed_over = {}, {}, set()
        self.generation += 1

    def choose(
        self, a: Any, b: Any, out: Any = None, out_dtype: str | None = None, epilogue: str = NONE
    ) -> tuple[Choice, Plan | None]:
        """What runs a · b, with the plan to launch when it is an own kernel.

        Args:
            a, b, out, out_dtype, epilogue: as of `problem_of`.

        Raises:
            CaptureError: a CUDA graph is being captured and the kernel is not loaded yet.
            BundleError: the bundle that CUPYGEMM_BUNDLE names cannot be read.
            SettingError: CUPYGEMM_COMPILE or CUPYGEMM_UNSEEN is not what it may be.
        """
        problem = problem_of(a, b, out, out_dtype, epilogue)
        if isinstance(problem, str):
            return Choice("cublas", problem), None
        key = (problem, a.device.id, False)
        known = self._chosen.get(key)
        return self.choose_for(*key) if known is None else known

    def choose_for(self, problem: Problem, index: int, copied: bool = False) -> tuple[Choice, Plan | None]:
        """What runs a problem whose operands own kernels can read, on a CUDA device.

        Args:
            problem: what is computed.
            index: of the device.
            copied: whether own kernels read copies, made because that is expected to be faster than cuBLAS is with
                the operands as they lie: how fast it is with such as TMA reads then decides nothing.

        Raises:
            CaptureError, BundleError, SettingError: as `choose`.
        """
        key = (problem, index, copied)
        with self._lock:
            known, meanwhile, generation = self._chosen.get(key), self._meanwhile.get(key), self.generation
        if known is not None:
            return known
        in_background = self._in_background and compiles_in_background(problem)
        if meanwhile is not None and in_background and not meanwhile[1].is_over and not is_capturing():
            return meanwhile[0], None
        try:
            found = self._prepare(problem, index, in_background, copied)
        except StillCompiling as state:
            if copied:
                # Needed too, and compiled side by side.
                self.kernels.compilations.begin(PACKING, problem)
            choice = Choice("cublas", str(state), problem)
            with self._lock:
                if generation == self.generation:
                    self._meanwhile[key] = choice, state.job
            return choice, None
        with self._lock:
            # What was decided by bundles that have gone meanwhile holds for this call alone.
            return self._chosen.setdefault(key, found) if generation == self.generation else found

    def load_packing(self, problem: Problem, index: int) -> None:
        """Sees to it that operands of a problem can be copied for TMA on a CUDA device.

        Raises:
            CaptureError: a CUDA graph is being captured and the kernel that copies is not loaded yet.
            StillCompiling: that kernel is being compiled in the background.
            CompileError, LaunchError: what stands in its way.
            SettingError: as `choose`.
        """
        self.kernels.load_packing(problem, index, self._in_background and compiles_in_background(problem))

    def predict(self, problem: Problem, device: DeviceSpec) -> Prediction | None:
        """What is expected of a problem that nobody has tuned; None where nothing is.

        Raises:
            BundleError, SettingError: as `choose`.
        """
        with self._lock:
            return self._unseen.predict(problem, device) if self._in_force.ships() else None

    def bundles(self) -> list[tuple[str, Bundle]]:
        """The bundles in force by name, the newest first.

        Raises:
            BundleError: the bundle that CUPYGEMM_BUNDLE names cannot be read.
        """
        with self._lock:
            return [(source.name, source.bundle) for source in self._in_force.sources()]

    def problems(self) -> list[Problem]:
        """What the bundles in force have entries for, those of the newest first; the shipped one counts if alone.

        Raises:
            BundleError: the bundle that CUPYGEMM_BUNDLE names cannot be read.
        """
        with self._lock:
            sources = self._in_force.sources()
        named = [source for source in sources if not source.ships] or sources
        return list(dict.fromkeys(entry.problem for source in named for entry in source.bundle.entries))

    def choose_on(self, problem: Problem, device: DeviceSpec, copied: bool = False) -> Choice:
        """What would run a problem on a GPU that need not be here: nothing is compiled or loaded.

        Args:
            problem, copied: as of `choose_for`.
            device: where.

        Raises:
            BundleError: as `choose`.
        """

        def refuse(config: KernelConfig) -> None:
            _refuse_illegal(problem, config, device)

        return self._first_that_works(problem, device, refuse, copied)[0]

    def _prepare(self, problem: Problem, index: int, in_background: bool, copied: bool) -> tuple[Choice, Plan | None]:
        def make(config: KernelConfig) -> Plan:
            return Plan(problem, self.kernels.load(problem, config, index, in_background))

        return self._first_that_works(problem, driver.device_spec(index), make, copied)

    def _first_that_works(
        self, problem: Problem, device: DeviceSpec, make: Make, copied: bool
    ) -> tuple[Choice, Plan | None]:
        """What the first entry comes to that can run, with what `make` makes of it; it raises where one cannot."""
        if not device.is_hopper:
            return Choice("cublas", f"{device.name} is not a Hopper GPU", problem), None
        passed_over: list[str] = []
        for source, entry in self._entries(problem, device):
            # What is measured of a stack is no way that CuPy goes, which is far slower.
            loses = entry.is_slower and not (self._even_slower or copied) and problem.batch == 1
            reason = source.bundle.mismatch(device)
            if reason is None:
                plan = None
                try:
                    if loses:
                        _refuse_illegal(problem, entry.config, device)
                    else:
                        plan = make(entry.config)
                except UNUSABLE as error:
                    reason = str(error)
                else:
                    return self._decided(source, entry, device, loses), plan
            passed_over.append(f"the entry of {source.name} is skipped: {reason}")
            self._log_passed_over(source, problem, passed_over[-1])
        for why, config, name in self._stand_ins(problem, device):
            try:
                return Choice("own", why, problem, config, name), make(config)
            except UNUSABLE as error:
                passed_over.append(f"{why}, but {error}")
        return self._expected(problem, device, make, copied, passed_over)

    def _expected(
        self, problem: Problem, device: DeviceSpec, make: Make, copied: bool, passed_over: list[str]
    ) -> tuple[Choice, Plan | None]:
        """What is expected to be faster where nothing that works is known: an own kernel, or cuBLAS."""
        prediction = self.predict(problem, device)
        why = [*passed_over] or [_NO_CONFIG]
        if prediction is not None:
            # cuBLAS with these very operands was compared before they were copied.
            figure = f"{prediction.own_us:.1f} µs" if copied else f"{prediction.speedup:.2f} times as fast as cuBLAS"
            without = "" if problem.epilogue == NONE else ", without the epilogue"
            close = ", too close to call" if not copied and prediction.speedup > 1 and not prediction.is_faster else ""
            why.append(f"predicted {figure}{without}{close}{self._unseen.remarks(device)}")
            if copied or prediction.is_faster:
                try:
                    return Choice("own", "; ".join(why), problem, prediction.config), make(prediction.config)
                except UNUSABLE as error:
                    why.append(f"but {error}")
        return Choice("cublas", "; ".join(why), problem), None

    def _stand_ins(self, problem: Problem, device: DeviceSpec) -> Iterator[tuple[str, KernelConfig, str | None]]:
        """Configs that nobody has measured for a problem of a stack or with an epilogue, why, and their bundles.

        Those of the same product without an epilogue, or with another result; then those of one matrix of a stack, and
        for a stack a default, since CuPy would widen stacks to float32: before those of one matrix that are expected to
        take clearly longer on so many, as tiles do that were chosen for fewer of them.
        """
        default = default_config(problem, device) if problem.batch > 1 else None
        longer: list[tuple[Source, Entry]] = []
        for alike in _alike(problem):
            for source, entry in self._entries(alike, device):
                if source.bundle.mismatch(device) is not None or (problem.batch == 1 and entry.is_slower):
                    continue
                if default and alike.batch == 1 and _takes_longer(problem, entry.config, default, device):
                    longer.append((source, entry))
                else:
                    yield self._borrowed(source, entry, device)
        if default is not None:
            why = f"{_NO_CONFIG}, and this is the one for stacks of its size"
            if longer:
                source, entry = longer[0]
                why += f", which is expected to be faster than what {source.name} has for {entry.problem}"
            yield why, default, None
        for source, entry in longer:
            yield self._borrowed(source, entry, device)

    def _borrowed(self, source: Source, entry: Entry, device: DeviceSpec) -> tuple[str, KernelConfig, str]:
        """Of `_stand_ins`, the config of an entry."""
        why = f"{source.name} has a config for {entry.problem}{self._remarks(source, entry, device)}"
        return why, entry.config, source.name

    def _decided(self, source: Source, entry: Entry, device: DeviceSpec, loses: bool) -> Choice:
        """The choice that an entry comes to: its config, or cuBLAS where it was measured to lose."""
        remarks = self._remarks(source, entry, device)
        if loses:
            why = f"{source.name} has measured cuBLAS to be faster: {_figures(entry)}{remarks}"
            return Choice("cublas", why, entry.problem, None, source.name, entry)
        why = f"{source.name} has a config for it{remarks}"
        return Choice("own", why, entry.problem, entry.config, source.name, entry)

    def _remarks(self, source: Source, entry: Entry, device: DeviceSpec) -> str:
        """What to add where an entry was not measured here, with these kernel sources; logged too, once a bundle."""
        elsewhere = source.bundle.elsewhere(device)
        origin = source.bundle.remark(entry, compiler.source_digest(entry.config))
        if elsewhere is not None:
            self._log_once(source, elsewhere, logging.WARNING, elsewhere)
        if origin is not None:
            # Of the shipped bundle this is nothing that its user could mend.
            self._log_once(source, "sources", logging.DEBUG if source.ships else logging.WARNING, origin)
        return "".join(f", {remark}" for remark in (elsewhere, origin) if remark is not None)

    def _entries(self, problem: Problem, device: DeviceSpec) -> Iterator[tuple[Source, Entry]]:
        """As `InForce.entries`, each looked up under the lock, which is not held in between."""
        found = self._in_force.entries(problem, device)
        while True:
            with self._lock:
                pair = next(found, None)
            if pair is None:
                return
            yield pair

    def _log_once(self, source: Source, kind: str, level: int, remark: str) -> None:
        with self._lock:
            known = (source.name, kind) in self._logged
            self._logged.add((source.name, kind))
        if not known:
            log.log(level, "%s was %s", source.name, remark)

    def _log_passed_over(self, source: Source, problem: Problem, words: str) -> None:
        """Once, however many threads find it out, and again when bundles have come or gone."""
        with self._lock:
            known = (source.name, problem, words) in self._passed_over
            self._passed_over.add((source.name, problem, words))
        if not known:
            log.warning("%s: %s", problem, words)


def _alike(problem: Problem) -> list[Problem]:
    """The product of one matrix, with a result as narrow as its operands, without an epilogue; most alike first."""
    if problem.batch == 1 and problem.epilogue == NONE:
        return []
    found = (
        replace(problem, epilogue=epilogue, out_dtype=out_dtype, batch=batch)
        for epilogue in (problem.epilogue, NONE)
        for out_dtype in (problem.out_dtype, problem.a_dtype)
        for batch in (problem.batch, 1)
    )
    return [alike for alike in dict.fromkeys(found) if alike != problem]


def _takes_longer(problem: Problem, config: KernelConfig, other: KernelConfig, device: DeviceSpec) -> bool:
    """Whether the estimate expects the first of two configs to take clearly longer."""
    one, two = estimated_us(problem, (config, other), device)
    return one > CLEARLY * two


def _refuse_illegal(problem: Problem, config: KernelConfig, device: DeviceSpec) -> None:
    """Raises ConfigError where a GPU cannot run the config of a problem."""
    reason = oversize_reason(problem) or illegal_reason(config, KernelSpec.of(problem), device)
    if reason is not None:
        raise ConfigError(reason)


def _figures(entry: Entry) -> str:
    """The times of an entry that lost."""
    measured = entry.measured
    cublas = "" if measured.cublas_us is None else f" to its {measured.cublas_us:.2f}"
    return f"{measured.us:.2f} µs{cublas}, a speedup of {entry.speedup:.3f}"
