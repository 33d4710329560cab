"""CUDA graphs of many launches, and their replay by turns between events: how time is taken."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cupygemm.kernels import driver
from cupygemm.kernels.operands import Launch, Operands


class TimedGraph(NamedTuple):
    """A CUDA graph of `launches` launches, one after the other."""

    graph: Any
    launches: int


def capture(launch: Launch, sets: Sequence[Operands], launches: int) -> TimedGraph:
    """Captures launches over the sets in turn, on the current stream, which must not be the default stream."""
    cupy = driver.cupy()
    stream = cupy.cuda.get_current_stream()
    stream.begin_capture()
    try:
        for index in range(launches):
            launch(sets[index % len(sets)])
    except BaseException:
        # A capture that is not ended makes the stream useless; ending one that broke raises once more.
        with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):
            stream.end_capture()
        raise
    return TimedGraph(stream.end_capture(), launches)


def interleave(
    graphs: Mapping[str, TimedGraph], rounds: int, meanwhile: Callable[[], object] = lambda: None, warmups: int = 1
) -> dict[str, list[float]]:
    """Replays all graphs once a round, by turns, on the current stream, and waits for the end.

    Every other round goes through them backwards, so that none always follows the same one.

    Args:
        graphs: by name.
        rounds: samples of each.
        meanwhile: called once all is queued, while the GPU works.
        warmups: rounds before them that are not timed.

    Returns:
        by name, µs of one launch, one sample a round, in the order taken.
    """
    event = driver.cupy().cuda.Event
    marks: dict[str, list[tuple[Any, Any]]] = {name: [] for name in graphs}
    # Not timed: they warm up, and keep the GPU busy while the rounds are queued behind them.
    for timed in list(graphs.values()) * warmups:
        timed.graph.launch()
    for index in range(rounds):
        for name in list(graphs) if index % 2 == 0 else reversed(list(graphs)):
            start, end = event(), event()
            start.record()
            graphs[name].graph.launch()
            end.record()
            marks[name].append((start, end))
    meanwhile()
    driver.cupy().cuda.get_current_stream().synchronize()
    return {name: [_elapsed_us(*pair) / graphs[name].launches for pair in marks[name]] for name in graphs}


def sustain(
    graphs: Mapping[str, TimedGraph],
    blocks: int,
    block_us: float,
    meanwhile: Callable[[str], object] = lambda name: None,
) -> dict[str, list[float]]:
    """Replays each graph alone for a block of time, by turns, on the current stream, and times the second half of it.

    A GPU at its power limit lowers its clock within some milliseconds. Graphs that take turns share the clock that
    they make together; in blocks this long each has the clock that it makes by itself.

    Args:
        graphs: by name.
        blocks: samples of each; every other time the graphs go backwards.
        block_us: length of a block.
        meanwhile: called with a graph's name while its block runs.

    Returns:
        by name, µs of one launch, one sample a block, in the order taken.
    """
    cupy = driver.cupy()
    stream = cupy.cuda.get_current_stream()
    rough_us = {name: samples[-1] * graphs[name].launches for name, samples in interleave(graphs, 1).items()}
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for index in range(blocks):
        for name in list(graphs) if index % 2 == 0 else reversed(list(graphs)):
            timed, half = graphs[name], max(1, math.ceil(block_us / 2 / rough_us[name]))
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            for _ in range(half):
                timed.graph.launch()
            start.record()
            for _ in range(half):
                timed.graph.launch()
            end.record()
            meanwhile(name)
            stream.synchronize()
            found[name].append(_elapsed_us(start, end) / half / timed.launches)
    return found


def _elapsed_us(start: Any, end: Any) -> float:
    return float(driver.cupy().cuda.get_elapsed_time(start, end)) * 1000.0
