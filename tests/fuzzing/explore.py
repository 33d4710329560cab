"""Runs many random cases, and shrinks what fails: Hypothesis, with a count of what ran and a file that tells of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, errors, given, seed, settings
from hypothesis import strategies as st

from tests.fuzzing.cases import Case
from tests.fuzzing.examine import Failure, Outcome

SHRINKING_S = 30.0
MOST_FAILURES = 5
"""After as many, a run ends."""
FEWEST = 25
MOST_ROUNDS = 100
"""Of one run, in case that there are fewer different cases than are wanted; and how many cases each draws at least."""


@dataclass
class Tally:
    """What a run came to.

    Attributes:
        cases: how many different ones were right.
        own: those of which own kernels answered every call.
        counts: of calls, by what answered them, and of cases by dtype, by what they have, and so on.
        failures: each with its shrunk case and the one that was found.
        over: whether the GPU can be used no more.
    """

    cases: int = 0
    own: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, str]] = field(default_factory=list)
    over: bool = False

    def add(self, case: Case, outcome: Outcome) -> None:
        """Counts a case that is right."""
        self.cases += 1
        self.own += outcome.is_own
        for name in ("own", "cublas", "refused", "wrong_in_cupy"):
            self.counts[f"calls {name}"] += getattr(outcome, name)
        self.counts[f"cases of {case.promoted_dtype}"] += 1
        for name in traits(case):
            self.counts[f"cases {name}"] += 1
            self.counts[f"cases {name}, own"] += outcome.is_own


def traits(case: Case) -> list[str]:
    """What there is about a case, in words."""
    arrays = [array for array in (case.a, case.b, case.out, case.bias, case.residual) if array is not None]
    steps = [step for array in arrays for step in array.storage.steps]
    found = {
        "with stacks": max(len(case.a.shape), len(case.right.shape)) > 2,
        "with an axis": min(len(case.a.shape), len(case.right.shape)) == 1,
        "without elements": 0 in (*case.shape, case.k),
        "with an epilogue": case.is_fused,
        "with out": case.out is not None,
        "with out on another array": any(call.out_on for call in case.calls),
        "with axes in another order": any(
            array.storage.order not in ((), tuple(range(len(array.shape)))) for array in arrays
        ),
        "with steps": any(abs(step) > 1 for step in steps),
        "with axes backwards": any(step < 0 for step in steps),
        "with broadcast axes": 0 in steps,
        "with gaps": any(array.storage.gap for array in arrays),
        "with offsets": any(array.storage.offset for array in arrays),
        "with calls in another place": len(set(case.calls)) > 1,
    }
    return [name for name, there in found.items() if there]


def explore(
    examine: Callable[[Case], Outcome],
    strategy: st.SearchStrategy[Case],
    cases: int,
    first_seed: int,
    *,
    until: float = float("inf"),
    meanwhile: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """Examines random cases; what fails is shrunk, written down, and left behind.

    Args:
        examine: raises `Failure`; whatever else it raises is one too, and ends the run.
        first_seed: of Hypothesis.
        until: `time.monotonic()` after which nothing new is examined.
        meanwhile: called now and then, and at each failure.
    """
    tally, seen = Tally(), set[Case]()
    for each in range(first_seed, first_seed + MOST_ROUNDS):
        _Round(examine, tally, seen, until, meanwhile).run(strategy, max(cases - tally.cases, FEWEST), each)
        meanwhile(tally)
        if tally.over or tally.cases >= cases or time.monotonic() > until or len(tally.failures) >= MOST_FAILURES:
            break
    return tally


class _Round:
    """One run of Hypothesis: until a case fails, or all have passed."""

    def __init__(
        self,
        examine: Callable[[Case], Outcome],
        tally: Tally,
        seen: set[Case],
        until: float,
        meanwhile: Callable[[Tally], None],
    ) -> None:
        self._examine = examine
        self._tally = tally
        self._seen = seen
        self._until = until
        self._meanwhile = meanwhile
        self._failing: dict[Case, Failure] = {}
        self._found_at = 0.0

    def run(self, strategy: st.SearchStrategy[Case], cases: int, seed_: int) -> None:
        @seed(seed_)
        @settings(
            max_examples=cases,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
        )
        @given(case=strategy)
        def each(case: Case) -> None:
            self._one(case)

        try:
            each()
        except Failure as shrunk:
            self._note(shrunk)
        except errors.HypothesisException:
            # It did not fail again when it was to be shrunk.
            self._note(next(iter(self._failing.values())))

    def _one(self, case: Case) -> None:
        if case in self._failing:
            raise self._failing[case]
        now = time.monotonic()
        if now > (self._found_at + SHRINKING_S if self._failing else self._until) or self._tally.over:
            return
        if case in self._seen:
            # Hypothesis knows what it draws, and not that different draws come to the same case.
            return
        self._seen.add(case)
        try:
            outcome = self._examine(case)
        except Failure as failure:
            self._fail(failure)
        except Exception as error:
            # The driver's errors stay: nothing can be shrunk, and nothing more examined.
            self._tally.over = True
            self._fail(Failure(case, f"{type(error).__name__}: {error}"))
        if not self._failing:
            self._tally.add(case, outcome)
            if self._tally.cases % 250 == 0:
                self._meanwhile(self._tally)

    def _fail(self, failure: Failure) -> Any:
        if not self._failing:
            self._found_at = time.monotonic()
        self._failing[failure.case] = failure
        raise failure

    def _note(self, shrunk: Failure) -> None:
        found = next(iter(self._failing.values()))
        self._tally.failures.append(
            {"case": str(shrunk.case), "reason": shrunk.reason, "found": str(found.case), "found_reason": found.reason}
        )
