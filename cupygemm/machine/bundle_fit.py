"""Whether the bundles and the forecast that are in force from the start suit this machine: for `cupygemm doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cupygemm import settings
from cupygemm.bundles.bundle import Bundle, gpu_words
from cupygemm.bundles.bundle_check import findings
from cupygemm.bundles.in_force import shipped_bundle
from cupygemm.choosing.forecast import shipped_forecast
from cupygemm.device import DeviceSpec
from cupygemm.errors import BundleError, SettingError
from cupygemm.kernels import compiler
from cupygemm.kernels.kernel_source import cp_async_source_digest
from cupygemm.machine.checks import Check, State
from cupygemm.text import count, one_line


def check_bundles(specs: Sequence[DeviceSpec]) -> Iterator[Check]:
    """The bundle that CUPYGEMM_BUNDLE names, and the shipped one, on the Hopper GPUs that are here."""
    yield from _check_named(specs)
    name = "shipped bundle"
    if settings.shipped_in_force():
        yield _fit(name, shipped_bundle(), "", specs)
    else:
        found = f"turned off: CUPYGEMM_BUNDLE is {settings.NO_BUNDLE}"
        yield Check(name, State.ABSENT, found, "unset CUPYGEMM_BUNDLE to have it")


def check_forecast(specs: Sequence[DeviceSpec]) -> Iterator[Check]:
    """What shapes that no bundle has are decided by, on the Hopper GPUs that are here."""
    name = "forecast"
    try:
        asked = settings.unseen_in_force() and settings.shipped_in_force()
    except SettingError as error:
        yield Check(name, State.PROBLEM, one_line(error), "set CUPYGEMM_UNSEEN to off, or unset it")
        return
    if not asked:
        yield Check(name, State.OK, "turned off")
        return
    try:
        forecast = shipped_forecast()
    except BundleError as error:
        yield Check(name, State.PROBLEM, one_line(error), "install cupygemm anew; until then cuBLAS runs such shapes")
        return
    elsewhere = list(dict.fromkeys(remark for spec in specs if (remark := forecast.elsewhere(spec)) is not None))
    outdated = forecast.outdated(compiler.source_digest(), cp_async_source_digest())
    found = ", ".join(["asked for shapes that no bundle has", *elsewhere, *([outdated] if outdated else [])])
    remedy = "cupygemm tune measures a shape that matters" if elsewhere or outdated else ""
    # Other sources are nothing that its user could mend, as with the shipped bundle.
    yield Check(name, State.WARNING if elsewhere else State.OK, found, remedy)


def _check_named(specs: Sequence[DeviceSpec]) -> Iterator[Check]:
    path, name = settings.bundle_path(), "bundle"
    if path is None:
        yield Check(name, State.OK, "the shipped one alone: CUPYGEMM_BUNDLE is not set (cupygemm tune makes your own)")
        return
    try:
        bundle = Bundle.load(path)
    except BundleError as error:
        yield Check(name, State.PROBLEM, one_line(error), "make it anew with cupygemm tune, or unset CUPYGEMM_BUNDLE")
        return
    yield _fit(name, bundle, f"{path}: ", specs)
    wrong = findings(bundle)
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        yield Check(name, State.WARNING, wrong[0] + more, f"cupygemm bundle validate {path} lists all")


def _fit(name: str, bundle: Bundle, where: str, specs: Sequence[DeviceSpec]) -> Check:
    """Whether a bundle's entries are used on the Hopper GPUs here, or anywhere where there is none.

    Args:
        where: leads what was found; empty for the shipped bundle, of which its user can mend nothing.
        specs: the Hopper GPUs.
    """
    found = f"{where}{count(len(bundle.entries), 'entry', 'entries')} of {bundle.device}"
    outdated = sum(bundle.outdated(entry, compiler.source_digest(entry.config)) is not None for entry in bundle.entries)
    if outdated:
        found += f", {outdated} measured with other kernel sources"
    for spec in specs:
        mismatch, elsewhere = bundle.mismatch(spec), bundle.elsewhere(spec)
        if mismatch is not None:
            return Check(name, State.PROBLEM, f"{found}: {mismatch}", "tune here with cupygemm tune")
        if elsewhere is not None:
            return Check(name, State.WARNING, f"{found}, used on {gpu_words(spec)}", "cupygemm tune may find faster")
    remedy = "cupygemm tune on a Hopper GPU measures anew" if outdated else ""
    return Check(name, State.WARNING if outdated and where else State.OK, found, remedy)
