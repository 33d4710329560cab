"""A GPU to measure on: opened with its runner, or as the `Target` of a tuning run."""

from __future__ import annotations

from cupygemm.errors import LaunchError
from cupygemm.kernels import compiler, driver
from cupygemm.measuring import provenance
from cupygemm.problem import Problem
from cupygemm.search.runners.counted import CountedRunner
from cupygemm.search.runners.gpu_runner import GpuRunner
from cupygemm.search.spaces.space import SearchSpace
from cupygemm.search.target import Target


def open_gpu(index: int) -> GpuRunner:
    """The runner of a Hopper GPU; whoever opens it closes it.

    Raises:
        LaunchError: CuPy is missing, there is no such GPU, it is no Hopper, or another process measures on it.
    """
    device = driver.device_spec(index)
    if not device.is_hopper:
        raise LaunchError(f"cuda:{index} is an {device.name}: the kernels need a Hopper GPU (H100, H200, GH200)")
    return GpuRunner(device=index)


def gpu_target(problem: Problem, index: int, command: str, counters: bool = False) -> Target:
    """A GPU, with the whole default space of a problem and cuBLAS's times on it.

    Args:
        problem: what is to be computed.
        index: CUDA device.
        command: what the provenance calls the command.
        counters: whether the L2 figures are to be counted, where they can be; they are modelled otherwise.

    Raises:
        LaunchError: as `open_gpu`, or cuBLAS cannot be timed.
    """
    runner = open_gpu(index)
    try:
        return Target(
            runner=CountedRunner(runner, index) if counters else runner,
            space=SearchSpace.for_problem(problem, runner.device_spec),
            device=runner.device_spec,
            provenance=provenance.collect(index, command),
            source_digest=compiler.source_digest(),
            baselines=runner.baselines(problem),
        )
    except BaseException:
        runner.close()
        raise
