"""What `cupygemm explain` does: find out what `matmul` would run for a problem, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from cupygemm import driver
from cupygemm.bundle import Bundle, gpu_words
from cupygemm.bundle_check import spec_of
from cupygemm.choice import Choice
from cupygemm.config import KernelSpec, shared_bytes
from cupygemm.device import H200, DeviceSpec
from cupygemm.dispatch import Dispatcher, unposed_reason, unread_reason
from cupygemm.problem import Problem
from cupygemm.text import printable


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
    """
    answer = explain_problem(problem, bundle)
    for line in [json.dumps(_as_dict(answer))] if as_json else _lines(answer):
        click.echo(line)


def explain_problem(problem: Problem, path: Path | None) -> Answer:
    """The answer for the first GPU of this machine, or for the one that the first bundle was measured on.

    Raises:
        BundleError: the bundle cannot be read.
    """
    dispatcher = Dispatcher(None if path is None else {str(path): Bundle.load(path)})
    index = next(iter(driver.hopper_devices() or driver.devices()), None)
    measured_on = [spec_of(bundle.device) for _, bundle in dispatcher.bundles()]
    device = driver.device_spec(index) if index is not None else (measured_on or [H200])[0]
    unposed, unread = unposed_reason(problem), unread_reason(problem)
    if unposed is not None:
        choice = Choice("cublas", unposed, problem)
    elif index is None:
        choice = dispatcher.choose_on(problem, device, copied=unread is not None)
    else:
        choice = dispatcher.choose_for(problem, index, copied=unread is not None)[0]
    if unread is not None and choice.kernel == "own":
        choice = replace(choice, reason=f"{choice.reason}; {unread}, so it is copied where that is expected to pay")
    return Answer(choice, problem, device, index is not None)


def _lines(answer: Answer) -> Iterator[str]:
    device, choice = answer.device, answer.choice
    if not answer.here:
        yield printable(f"no GPU found: the answer is for {gpu_words(device)}, and nothing was compiled")
    yield from map(printable, str(choice).splitlines())
    if choice.config is not None:
        used = shared_bytes(choice.config, KernelSpec.of(answer.problem))
        registers = f"{choice.config.accumulators} of {choice.config.consumer_registers} registers hold accumulators"
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
