"""What `cupygemm explain` does: find out what `matmul` would run for a problem, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from cupygemm import settings
from cupygemm.bundles.bundle import Bundle, gpu_words
from cupygemm.bundles.bundle_check import spec_of
from cupygemm.choosing.choice import Choice
from cupygemm.choosing.dispatch import Dispatcher
from cupygemm.choosing.forecast import Prediction
from cupygemm.config import KernelSpec, shared_bytes
from cupygemm.device import H200, DeviceSpec
from cupygemm.kernels import driver
from cupygemm.problem import Problem
from cupygemm.text import printable
from cupygemm.views.gapless import Gapless, gapless
from cupygemm.views.packing_cost import cupy_us, pack_us, pays
from cupygemm.views.reading import unposed_reason


@dataclass(frozen=True)
class Answer:
    """What would run, and on which GPU that is.

    Attributes:
        device: the GPU that the answer is for.
        here: whether it is in this machine; without it nothing was compiled or loaded.
    """

    choice: Choice
    problem: Problem
    device: DeviceSpec
    here: bool


def run_explain(problem: Problem, bundle: Path | None, as_json: bool) -> None:
    """Says what `matmul` would run for a problem whose operands lie without gaps.

    Args:
        bundle: whose configs; None for the bundles in force.

    Raises:
        BundleError: the bundle cannot be read.
        SettingError: CUPYGEMM_COMPILE or CUPYGEMM_UNSEEN is not what it may be.
    """
    answer = explain_problem(problem, bundle)
    for line in [json.dumps(_as_dict(answer))] if as_json else _lines(answer):
        click.echo(line)


def explain_problem(problem: Problem, path: Path | None) -> Answer:
    """The answer for the first GPU of this machine, or for the one that the first bundle was measured on.

    Raises:
        BundleError, SettingError: as `run_explain`.
    """
    settings.compiles_in_background()  # whether it may be: without a GPU nothing else would ask
    dispatcher = Dispatcher(None if path is None else {str(path): Bundle.load(path)})
    index = next(iter(driver.hopper_devices() or driver.devices()), None)
    measured_on = [spec_of(bundle.device) for _, bundle in dispatcher.bundles()]
    device = driver.device_spec(index) if index is not None else (measured_on or [H200])[0]
    return Answer(_choice(dispatcher, problem, device, index), problem, device, index is not None)


def _choice(dispatcher: Dispatcher, problem: Problem, device: DeviceSpec, index: int | None) -> Choice:
    read = unposed_reason(problem) or gapless(problem)
    if isinstance(read, str):
        return Choice("cublas", read, problem)
    copied = read.unread is not None
    expected = None
    if copied:
        expected = dispatcher.predict(read.problem, device)
        times = (None, None) if expected is None else (expected.own_us, expected.cublas_us)
        if not pays(read.problem, read, read.a, read.b, *times):
            return Choice("cublas", f"{read.unread}, and copying it is not expected to pay", problem)
    if index is None:
        choice = dispatcher.choose_on(read.problem, device, copied=copied)
    else:
        choice = dispatcher.choose_for(read.problem, index, copied=copied)[0]
    if copied:
        choice = replace(choice, reason=f"{choice.reason}{_copies_words(read, choice, expected)}; {read.unread}")
    return choice


def _copies_words(read: Gapless, choice: Choice, expected: Prediction | None) -> str:
    """What is copied first, and what that comes to where the own kernel's time was predicted."""
    names = " and ".join(name for name, copy in zip("ab", read.copies, strict=True) if copy is not None)
    if choice.kernel != "own" or choice.entry is not None or expected is None:
        return f"; {names} copied first"
    own_us = pack_us(read) + expected.own_us
    ratio = cupy_us(read.problem, read.a, read.b, expected.cublas_us) / own_us
    return f", {own_us:.1f} µs with a copy of {names} first, {ratio:.2f} times as fast as cuBLAS"


def _lines(answer: Answer) -> Iterator[str]:
    device, choice = answer.device, answer.choice
    if not answer.here:
        yield printable(f"no GPU found: the answer is for {gpu_words(device)}, and nothing was compiled")
    yield from map(printable, str(choice).splitlines())
    if choice.config is not None:
        used = shared_bytes(choice.config, KernelSpec.of(answer.problem))
        registers = f"{choice.config.accumulators} of {choice.config.registers} registers hold accumulators"
        yield f"  legal there: {used} of {device.shared_bytes} bytes of shared memory, {registers}"


def _as_dict(answer: Answer) -> dict[str, Any]:
    choice, problem = answer.choice, answer.problem
    entry = None if choice.entry is None else choice.entry.model_dump(mode="json")
    config = choice.config
    return {
        "problem": problem.to_dict(),
        "device": answer.device.to_dict(),
        "device_here": answer.here,
        "kernel": choice.kernel,
        "reason": choice.reason,
        "layout": problem.layout,
        "bundle": choice.bundle,
        "config": None if config is None else config.to_dict(),
        "shared_bytes": None if config is None else shared_bytes(config, KernelSpec.of(problem)),
        "measured": None if entry is None else entry["measured"],
        "search": None if entry is None else entry["search"],
    }
