"""The four layouts of one product in one interleaved run, so that their times compare with each other.

    python -m bench.layouts 2048x2048x4096 --bundle tuned.yaml -o bench/results/layout_ratios.json

`cupygemm bench layouts` compares each layout with cuBLAS, in a run of its own; between runs the clock moves by more
than layouts differ. The numbers of all operands are the same, stored one way and the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bench.shared.command import Program, command_line
from cupygemm.bundles.bundle import Bundle
from cupygemm.choosing.dispatch import Dispatcher
from cupygemm.errors import BundleError, VerificationError
from cupygemm.kernels import driver
from cupygemm.kernels.operands import Launch, Operands
from cupygemm.measuring import provenance
from cupygemm.measuring.measure import Bench
from cupygemm.measuring.results import write_report
from cupygemm.measuring.timing import CUBLAS, THOROUGH
from cupygemm.names import ROTATED
from cupygemm.problem import LAYOUTS, Problem


@click.command(cls=Program)
@click.argument("shapes", nargs=-1, required=True)
@click.option("--dtype", default="float16", show_default=True)
@click.option("--bundle", "path", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--commit", help="Of the source, in place of what git says.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(shapes: tuple[str, ...], dtype: str, path: Path, commit: str | None, output: Path) -> None:
    """Times the bundle's configs for the layouts of SHAPES by turns."""
    dispatcher = Dispatcher({str(path): Bundle.load(path)}, even_slower=True)
    summary = {shape: _ratios(shape, dtype, dispatcher) for shape in shapes}
    for shape, found in summary.items():
        click.echo(f"{shape}: {', '.join(f'{name} {value}' for name, value in found.items())}")
    command = command_line("bench.layouts")
    write_report(output, output.stem, command, provenance.collect(0, command, commit), summary)


def _ratios(shape: str, dtype: str, dispatcher: Dispatcher) -> dict[str, Any]:
    """µs of each layout and of cuBLAS for nn, and how far apart the layouts are."""
    bench = Bench(Problem.parse(shape, dtype))
    launches = {layout: _launch(Problem.parse(shape, dtype, layout=layout), dispatcher) for layout in LAYOUTS}
    for layout, launch in launches.items():
        verdict = bench.verify(launch)
        if not verdict.ok:
            raise VerificationError(f"{shape} {layout}: {verdict.detail}")
        for operands in bench.operands(ROTATED):
            launch(operands)  # makes the copies, which cannot be made while a graph is captured
    timing = bench.time(launches, THOROUGH, ROTATED)
    times = {name: timing.median_us(name) or float("nan") for name in (*LAYOUTS, CUBLAS)}
    own = [times[layout] for layout in LAYOUTS]
    return {**{f"{name}_us": round(us, 3) for name, us in times.items()}, "spread": round(max(own) / min(own) - 1, 4)}


def _launch(problem: Problem, dispatcher: Dispatcher) -> Launch:
    """The product of row-major operands by the kernel of another layout, from copies that are stored its way."""
    choice, plan = dispatcher.choose_for(problem, 0)
    if plan is None:
        raise BundleError(f"{problem}: {choice.reason}")
    own, cupy, copies = plan.launch, driver.cupy(), {}

    def stored(operand: Any, letter: str) -> Any:
        if letter == "n":
            return operand
        key = operand.data.ptr
        if key not in copies:
            copies[key] = operand, cupy.asfortranarray(operand)  # the first keeps its address its own
        return copies[key][1]

    def launch(operands: Operands) -> None:
        a, b = stored(operands.a, problem.layout[0]), stored(operands.b, problem.layout[1])
        own(operands._replace(a=a, b=b))

    return launch


if __name__ == "__main__":
    main()
