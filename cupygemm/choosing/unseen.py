"""What `matmul` may expect of products that no bundle has a config for: the shipped forecast, where it may be asked."""

from __future__ import annotations

import logging
import threading

from cupygemm import settings
from cupygemm.choosing.forecast import Forecast, Prediction, shipped_forecast
from cupygemm.device import DeviceSpec
from cupygemm.errors import BundleError
from cupygemm.kernels.kernel_source import cp_async_source_digest, source_digest
from cupygemm.problem import Problem

log = logging.getLogger(__name__)


class UnseenShapes:
    """The shipped forecast, unless CUPYGEMM_UNSEEN is "off" or the file is damaged, which is logged once."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._lock = threading.Lock()
        self._logged: set[str] = set()
        self._is_damaged = False
        # Where copies are weighed a problem is asked about twice, one time after the other.
        self._last: tuple[Problem, DeviceSpec, Prediction | None] | None = None

    def predict(self, problem: Problem, device: DeviceSpec) -> Prediction | None:
        """What is expected of a problem; None where nothing is known of its kind, or nothing is to be expected."""
        forecast = self._forecast()
        if forecast is None or not forecast.covers(problem, device):
            return None
        # That the survey is of other sources is nothing that a user could mend.
        for remark, level in self._remarks(forecast, device):
            self._log_once(f"what is expected of shapes that no bundle has was {remark}", level)
        last = self._last
        if last is None or last[:2] != (problem, device):
            last = self._last = problem, device, forecast.predict(problem, device)
        return last[2]

    def remarks(self, device: DeviceSpec) -> str:
        """What to add to a reason where another GPU was surveyed, or other kernel sources."""
        forecast = self._forecast()
        return "" if forecast is None else "".join(f", {remark}" for remark, _ in self._remarks(forecast, device))

    @staticmethod
    def _remarks(forecast: Forecast, device: DeviceSpec) -> list[tuple[str, int]]:
        """Each with the level at which it is logged."""
        outdated = forecast.outdated(source_digest(), cp_async_source_digest())
        found = (forecast.elsewhere(device), logging.WARNING), (outdated, logging.DEBUG)
        return [(remark, level) for remark, level in found if remark is not None]

    def _forecast(self) -> Forecast | None:
        if self._is_damaged or not settings.unseen_in_force():
            return None
        try:
            return shipped_forecast()
        except BundleError as error:
            self._is_damaged = True
            self._log_once(f"shapes that no bundle has are left to cuBLAS: {error}", logging.WARNING)
            return None

    def _log_once(self, text: str, level: int) -> None:
        with self._lock:
            if text not in self._logged:
                self._logged.add(text)
                log.log(level, "%s", text)
