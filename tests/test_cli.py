"""The command line: formats, exit status, and what it leaves on disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
from click.testing import CliRunner

from cupygemm import cli, driver
from cupygemm.bundle import Bundle
from cupygemm.device import H200
from cupygemm.measurement import Record
from cupygemm.problem import Problem
from cupygemm.search.recorded import file_name, find_table
from cupygemm.search.replay import ReplayRunner
from cupygemm.search.store import TrialStore
from cupygemm.search.strategies import STRATEGIES
from cupygemm.search.subspace import SUBSPACES

PROBLEM = Problem(2048, 2048, 4096)
SMALL = Problem(512, 512, 8192)
TRIAL_KEYS = {"event", "index", "config", "status", "us", "speedup", "spill_bytes", "registers", "best_us"}
RESULT_KEYS = {
    *("event", "problem", "dtype", "layout", "device", "strategy", "seed", "evaluations", "seconds", "best_us"),
    *("best_tflops", "cublas_us", "speedup", "config", "failures", "bundle", "optimum_us", "fraction_of_optimum"),
}


@pytest.fixture
def tables(tmp_path, toy_table, make_table, toy):
    folder = tmp_path / "tables"
    toy_table.write(folder / file_name(PROBLEM, H200))
    make_table(SMALL, toy).write(folder / file_name(SMALL, H200))
    return folder


@pytest.fixture
def run(tmp_path, tables, monkeypatch):
    monkeypatch.setattr(driver, "hopper_devices", list)
    store = tmp_path / "trials.sqlite"

    def call(*args: str, problem: str = "2048x2048x4096"):
        options = ["--tables", str(tables), "--store", str(store)]
        return CliRunner().invoke(cli.main, ["tune", problem, *options, *args])

    return call


def events(result) -> list[dict]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("strategy", cli.STRATEGY_NAMES)
def test_json_lines_are_as_promised(run, tmp_path, toy_table, strategy):
    output = tmp_path / "tuned.yaml"
    *trials, last = events(run("--json", "--budget", "30", "--strategy", strategy, "-o", str(output)))
    assert len(trials) == 30
    assert all(trial.keys() >= TRIAL_KEYS and trial["event"] == "trial" for trial in trials)
    assert [trial["index"] for trial in trials] == list(range(30))
    assert last.keys() >= RESULT_KEYS
    assert last["event"] == "result"
    assert (last["problem"], last["dtype"], last["layout"]) == ("2048x2048x4096", "float16", "nn")
    assert (last["device"], last["strategy"], last["seed"], last["evaluations"]) == ("replay", strategy, 0, 30)
    assert last["best_us"] == trials[-1]["best_us"] == min(t["us"] for t in trials if t["us"] is not None)
    assert last["speedup"] == pytest.approx(last["cublas_us"] / last["best_us"])
    assert last["best_tflops"] == pytest.approx(2 * 2048 * 2048 * 4096 / last["best_us"] / 1e6)
    assert last["optimum_us"] == toy_table.optimum_us
    assert last["fraction_of_optimum"] == pytest.approx(last["optimum_us"] / last["best_us"])
    assert sum(last["failures"].values()) == sum(trial["status"] != "ok" for trial in trials)
    assert last["bundle"] == str(output)


def test_failed_trials_have_no_time(run):
    *trials, _ = events(run("--json", "--strategy", "exhaustive"))
    failed = [trial for trial in trials if trial["status"] != "ok"]
    assert failed
    assert all(trial["us"] is None and trial["speedup"] is None for trial in failed)


def test_the_same_seed_gives_the_same_trials(run):
    one, two, three = (
        [event["config"] for event in events(run("--json", "--budget", "40", "--seed", seed))[:-1]] for seed in "778"
    )
    assert one == two != three


def test_exhaustive_search_has_no_default_budget(run, toy_table):
    *trials, last = events(run("--json", "--strategy", "exhaustive"))
    assert len(trials) == len(toy_table.rows)
    assert last["stopped_by"] == "exhausted"
    assert last["fraction_of_optimum"] == 1.0


def test_the_default_budget_is_a_hundred(run):
    assert events(run("--json"))[-1]["evaluations"] == 100


def test_a_speedup_ends_the_search(run):
    last = events(run("--json", "--stop-at-speedup", "0.5", "--strategy", "random"))[-1]
    assert last["stopped_by"] == "speedup"
    assert last["speedup"] >= 0.5


def test_the_bundle_carries_what_the_table_recorded(run, tmp_path, toy_table):
    output = tmp_path / "tuned.yaml"
    last = events(run("--json", "-o", str(output)))[-1]
    bundle = Bundle.load(output)
    found = bundle.find(PROBLEM, H200, "d1")
    assert found.config.to_dict() == last["config"]
    assert found.measured.us == last["best_us"]
    assert found.measured.cublaslt_us == toy_table.baselines["cublaslt_us"]
    assert found.measured.spread == toy_table.rows[found.config].spread
    assert found.provenance == toy_table.provenance
    assert (found.search.strategy, found.search.seed, found.search.evaluations) == ("cma", 0, 100)
    assert (bundle.device.name, bundle.device.driver) == (H200.name, "580.1")
    assert bundle.tool.source_digest == "d1"


def test_a_bundle_that_exists_is_added_to(run, tmp_path):
    output = tmp_path / "tuned.yaml"
    for problem, budget in ((PROBLEM, "5"), (SMALL, "5"), (PROBLEM, "60")):
        result = run("--budget", budget, "-o", str(output), problem=problem.shape)
        assert result.exit_code == 0, result.output
    entries = Bundle.load(output).entries
    assert [entry.problem for entry in entries] == [PROBLEM, SMALL]
    assert [entry.search.evaluations for entry in entries] == [60, 5]


def test_entries_of_other_sources_are_replaced_with_a_word(run, tmp_path, tables, make_table, toy):
    output = tmp_path / "tuned.yaml"
    run("--budget", "5", "-o", str(output), problem=SMALL.shape)
    make_table(PROBLEM, toy, "d2").write(tables / file_name(PROBLEM, H200))
    result = run("--budget", "5", "-o", str(output))
    assert result.exit_code == 0
    assert "other kernel sources" in result.stderr
    assert [entry.problem for entry in Bundle.load(output).entries] == [PROBLEM]


def test_a_bundle_of_another_device_is_left_alone(run, tmp_path, tables, toy_table):
    output = tmp_path / "tuned.yaml"
    run("--budget", "5", "-o", str(output))
    before = output.read_bytes()
    other = replace(toy_table, device=replace(H200, name="NVIDIA H100"))
    other.write(tables / file_name(PROBLEM, H200))
    failed(run("-o", str(output)), "holds configs of NVIDIA H200")
    assert output.read_bytes() == before


def test_a_file_that_is_no_bundle_is_left_alone(run, tmp_path):
    output = tmp_path / "notes.yaml"
    output.write_text("my: notes\n")
    failed(run("-o", str(output)), "schema is None")
    assert output.read_text() == "my: notes\n"


def failed(result, what: str) -> None:
    """Exit status 1, with one clear line on standard error and nothing on standard output."""
    assert result.exit_code == 1, result.output
    assert what in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_a_problem_without_a_table_names_those_with_one(run):
    result = run(problem="64x64x64")
    failed(result, "no recorded table of 64x64x64")
    assert PROBLEM.shape in result.stderr
    assert SMALL.shape in result.stderr


def test_a_device_that_is_not_there_is_one_line(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupygemm.search.gpu_runner", SimpleNamespace(GpuRunner=None))
    monkeypatch.setattr(driver, "device_spec", driver.device_spec.__wrapped__)
    monkeypatch.setattr(driver, "cupy", _no_cupy)
    failed(run("--device", "cuda:0"), "CuPy is not installed")


def _no_cupy():
    raise driver.LaunchError("CuPy is not installed")


@pytest.mark.parametrize(
    ("problem", "args", "what"),
    [
        ("2048x2048", [], "MxNxK"),
        ("0x1x1", [], "m is 0"),
        (PROBLEM.shape, ["--strategy", "magic"], "magic"),
        (PROBLEM.shape, ["--device", "tpu"], "auto, replay, cuda"),
        (PROBLEM.shape, ["--budget", "0"], "budget"),
        (PROBLEM.shape, ["--seconds", "-1"], "seconds"),
        (PROBLEM.shape, ["--dtype", "float64"], "float64"),
        (PROBLEM.shape, ["--unknown"], "--unknown"),
    ],
)
def test_wrong_usage_is_status_2(run, problem, args, what):
    result = run(*args, problem=problem)
    assert result.exit_code == 2
    assert what in result.stderr


def test_piped_output_is_plain_lines(run):
    result = run("--budget", "20")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert sum(line.startswith("trial ") for line in lines) == 20
    assert "\x1b" not in result.stdout
    assert "of the recorded optimum" in result.stdout
    assert "× cuBLAS" in result.stdout


def test_trials_are_stored(run, tmp_path, toy_table):
    trials = events(run("--json", "--budget", "25"))[:-1]
    with TrialStore(tmp_path / "trials.sqlite") as store:
        stored = list(store.records(PROBLEM))
    assert [record.config.to_dict() for record in stored] == [trial["config"] for trial in trials]
    assert stored[0].provenance == toy_table.provenance


def test_a_table_where_nothing_runs_is_status_1(run, tables, toy_table, tmp_path):
    rows = {config: row for config, row in toy_table.rows.items() if row.status != "ok"}
    replace(toy_table, rows=rows).write(tables / file_name(PROBLEM, H200))
    result = run("--json", "-o", str(tmp_path / "tuned.yaml"))
    assert result.exit_code == 1
    assert not (tmp_path / "tuned.yaml").exists()


SLOW = """
import time
from cupygemm import cli, driver
from cupygemm.search.replay import ReplayRunner
quick = ReplayRunner._answer
def slow(self, config):
    time.sleep(0.05)
    return quick(self, config)
ReplayRunner._answer = slow
driver.hopper_devices = list
cli.main()
"""


def test_ctrl_c_leaves_a_valid_bundle(tmp_path, tables):
    output = tmp_path / "tuned.yaml"
    command = ["tune", PROBLEM.shape, "--tables", str(tables), "--store", str(tmp_path / "s.sqlite"), "--json"]
    command += ["--strategy", "random", "--budget", "10000", "-o", str(output)]
    process = subprocess.Popen([sys.executable, "-c", SLOW, *command], stdout=subprocess.PIPE, text=True)
    lines = [process.stdout.readline() for _ in range(5)]
    os.kill(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=30)
    *trials, last = [json.loads(line) for line in [*lines, *rest.splitlines()]]
    assert process.returncode == 0
    assert last["stopped_by"] == "interrupted"
    assert last["evaluations"] == len(trials) < 1000
    assert Bundle.load(output).entries[0].measured.us == last["best_us"]


def test_a_hundred_evaluations_end_soon(tmp_path, core_table):
    core_table.write(tmp_path / file_name(PROBLEM, H200))
    options = ["--tables", str(tmp_path), "--store", str(tmp_path / "s.sqlite"), "--device", "replay"]
    started = time.monotonic()
    source = "from cupygemm.cli import main; main()"
    command = [sys.executable, "-c", source, "tune", PROBLEM.shape, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "(100 evaluations," in done.stdout
    assert time.monotonic() - started < 15


def test_importing_the_command_line_is_cheap():
    heavy = ("numpy", "pydantic", "yaml", "rich", "cupy", "cuda", "jax", "cmaes", "cupygemm.search")
    source = f"import sys, cupygemm.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("args", [[], ["tune"], ["record"], ["bundle"], ["bundle", "show"], ["bundle", "validate"]])
def test_every_command_explains_itself(args):
    result = CliRunner().invoke(cli.main, [*args, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


def test_names_in_the_help_are_the_real_ones():
    assert tuple(STRATEGIES) == cli.STRATEGY_NAMES
    assert tuple(SUBSPACES) == cli.SUBSPACE_NAMES


def test_bundle_show_and_validate(run, tmp_path):
    output = tmp_path / "tuned.yaml"
    run("--budget", "5", "-o", str(output))
    shown = CliRunner().invoke(cli.main, ["bundle", "show", str(output)])
    assert shown.exit_code == 0
    assert PROBLEM.shape in shown.stdout
    assert H200.name in shown.stdout
    valid = CliRunner().invoke(cli.main, ["bundle", "validate", str(output)])
    assert valid.exit_code == 0
    assert "1 entries" in valid.stdout
    output.write_text(output.read_text().replace("block_m:", "blok_m:"))
    for command in ("show", "validate"):
        failed(CliRunner().invoke(cli.main, ["bundle", command, str(output)]), "entries[0].config: missing block_m")


class MadeUpGpu(ReplayRunner):
    """Stands where `GpuRunner` does, and answers from the model of a GPU."""

    device = "cuda:0"
    model = table = stop_at = None

    def __init__(self, device):
        super().__init__(type(self).table)
        self.closed = False

    def baselines(self, problem):
        return {"cublas_us": 50.0, "cublaslt_us": 49.0}

    def compile_ahead(self, problems, configs):
        return len(configs)

    def sweep(self, problems, configs):
        for index, config in enumerate(configs):
            if index == self.stop_at:
                raise KeyboardInterrupt
            for problem in problems:
                yield Record(problem, config, type(self).model(config))


@pytest.fixture
def gpu(monkeypatch, toy, toy_table, model):
    kind = type("Gpu", (MadeUpGpu,), {"model": staticmethod(model), "table": toy_table})
    runner, provenance = ModuleType("gpu_runner"), ModuleType("provenance")
    runner.GpuRunner = kind
    provenance.collect = lambda device, command, commit=None, reading=None: {
        "date": "2026-11-29",
        "commit": commit,
        "driver": "580.1",
    }
    monkeypatch.setitem(sys.modules, "cupygemm.search.gpu_runner", runner)
    monkeypatch.setitem(sys.modules, "cupygemm.provenance", provenance)
    monkeypatch.setattr("cupygemm.provenance", provenance, raising=False)
    monkeypatch.setattr(driver, "hopper_devices", lambda: [0])
    monkeypatch.setattr(driver, "device_spec", lambda index: H200)
    monkeypatch.setitem(SUBSPACES, "core", toy)
    return kind


def record(tmp_path, *args: str):
    options = ["-o", str(tmp_path / "out"), "--store", str(tmp_path / "s.sqlite"), "--report", str(tmp_path / "r.json")]
    return CliRunner().invoke(cli.main, ["record", PROBLEM.shape, SMALL.shape, *options, *args])


def test_record_writes_a_table_a_problem(gpu, tmp_path, toy_table):
    result = record(tmp_path, "--commit", "abc")
    assert result.exit_code == 0, result.output
    table = find_table(SMALL, tmp_path / "out")
    table.check_exhaustive()
    assert table.provenance["commit"] == "abc"
    assert table.baselines["cublaslt_us"] == 49.0
    assert find_table(PROBLEM, tmp_path / "out").rows == toy_table.rows
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["schema"], report["name"]) == ("cupygemm.report/1", "tuning_rate")
    assert report["provenance"]["commit"] == "abc"
    assert report["summary"]["pairs"] == 2 * len(toy_table.rows)
    assert report["failures"]
    with TrialStore(tmp_path / "s.sqlite") as store:
        assert len(store) == 2 * len(toy_table.rows)


def test_an_interrupted_record_writes_no_table_and_loses_nothing(gpu, tmp_path):
    gpu.stop_at = 10
    result = record(tmp_path)
    assert result.exit_code == 1
    assert "20 of" in result.stderr
    assert "interrupted" in result.stderr
    assert not (tmp_path / "out").exists()
    with TrialStore(tmp_path / "s.sqlite") as store:
        assert len(store) == 20
    assert json.loads((tmp_path / "r.json").read_text())["summary"]["stopped_by"] == "interrupted"


def test_record_needs_a_gpu(gpu, tmp_path, monkeypatch):
    assert record(tmp_path, "--device", "replay").exit_code == 2
    monkeypatch.setattr(driver, "hopper_devices", list)
    result = record(tmp_path)
    assert result.exit_code == 1
    assert "no Hopper GPU" in result.stderr


def test_tuning_prefers_a_gpu(gpu, tmp_path):
    output = tmp_path / "tuned.yaml"
    command = ["tune", PROBLEM.shape, "--json", "--budget", "3", "-o", str(output), "--strategy", "exhaustive"]
    result = CliRunner().invoke(cli.main, [*command, "--store", str(tmp_path / "s.sqlite")])
    last = json.loads(result.stdout.splitlines()[-1])
    assert last["device"] == "cuda:0"
    assert last["evaluations"] == 3
    assert "optimum_us" not in last
