"""The command line: formats, exit status, and what it leaves on disk."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

import cupygemm
from cupygemm import cli, names
from cupygemm.bundles.bundle import Bundle
from cupygemm.commands import command_help
from cupygemm.device import H200
from cupygemm.kernels import driver
from cupygemm.search.recordings.recorded import file_name
from cupygemm.search.store import TrialStore
from tests.commands import PROBLEM, SMALL, events, failed

TRIAL_KEYS = {"event", "index", "config", "status", "us", "speedup", "spill_bytes", "registers", "best_us"}
RESULT_KEYS = {
    *("event", "problem", "dtype", "layout", "device", "strategy", "seed", "evaluations", "seconds", "best_us"),
    *("best_tflops", "cublas_us", "speedup", "config", "failures", "bundle", "optimum_us", "fraction_of_optimum"),
    *("bundle_entry", "entry_before"),
}


@pytest.mark.parametrize("strategy", names.STRATEGIES)
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
    found = bundle.entry(PROBLEM)
    assert found.config.to_dict() == last["config"]
    assert found.measured.us == last["best_us"]
    assert found.measured.cublaslt_us == toy_table.baselines["cublaslt_us"]
    assert found.measured.spread == toy_table.rows[found.config].spread
    assert found.provenance == {**toy_table.provenance, "replayed": True}
    assert (found.search.strategy, found.search.seed, found.search.evaluations) == ("cma", 0, 100)
    assert (bundle.device.name, bundle.device.driver) == (H200.name, "580.1")
    assert bundle.tool.source_digest == "d1"


def test_a_problem_without_a_table_names_those_with_one(run):
    result = run(problem="64x64x64")
    failed(result, "no recorded table of 64x64x64")
    assert PROBLEM.shape in result.stderr
    assert SMALL.shape in result.stderr


def test_stacks_and_epilogues_are_problems_too(run):
    result = run("--batch", "4", "--epilogue", "bias_n+gelu")
    failed(result, f"no recorded table of 4×{PROBLEM.shape} float16 nn bias_n+gelu")
    result = run("--epilogue", "bias")
    assert result.exit_code == 2
    assert "--epilogue: epilogue is 'bias': legal are" in result.stderr


def test_a_device_that_is_not_there_is_one_line(run, monkeypatch):
    monkeypatch.setattr(driver, "device_spec", driver.device_spec.__wrapped__)
    monkeypatch.setattr(driver, "cupy", _no_cupy)
    result = run("--device", "cuda:0")
    failed(result, "CuPy is not installed; --device replay answers for recorded problems")
    assert "`cupygemm bench --list recorded`" in result.stderr


def test_an_empty_name_is_wrong_usage(run):
    result = run("-o", "")
    assert result.exit_code == 2
    assert "'-o' / '--output': the name is empty: name a file or folder" in result.stderr


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


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (
            ["--strategy", "cma", "--l2-weight", "0.1"],
            "--l2-weight: cma learns from no reward; ppo and hybrid do",
        ),
        (["--strategy", "random", "--spill-weight", "0.05"], "--spill-weight"),
        (["--strategy", "exhaustive", "--l2-term", "bytes", "--l2-weight", "0"], "--l2-weight, --l2-term"),
        (["--strategy", "random", "--cold"], "--cold"),
        (["--cold", "--policy", "some.npz"], "--policy: with --cold no policy guides"),
        (["--device", "cuda", "--cold"], "--tables: on a GPU they are to begin with"),
        (["--device", "cuda:1", "--strategy", "exhaustive"], "--tables"),
        (["--device", "replay", "--counters"], "--counters"),
    ],
)
def test_options_that_mean_nothing_are_refused(run, args, what):
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert what in result.stderr.replace("'", "")


def test_the_same_options_are_taken_where_they_mean_something(run):
    weights = ["--l2-weight", "0.1", "--spill-weight", "0", "--l2-term", "hit_rate"]
    assert run("--strategy", "ppo", "--cold", "--budget", "2", *weights).exit_code == 0
    assert run("--cold", "--budget", "2", "--counters").exit_code == 0


def test_piped_output_is_plain_lines_for_improvements_and_every_tenth_trial(run):
    trials = events(run("--json", "--budget", "45"))[:-1]
    best = [None, *(trial["best_us"] for trial in trials)]
    wanted = [n for n in range(1, 46) if best[n] != best[n - 1] or n % 10 == 0]
    result = run("--budget", "45")
    assert result.exit_code == 0
    lines = [line for line in result.stdout.splitlines() if line.startswith("trial ")]
    assert [int(line.split()[1].split("/")[0]) for line in lines] == wanted
    assert len(wanted) < 20
    assert "\x1b" not in result.stdout
    assert "of the recorded optimum" in result.stdout
    assert "× cuBLAS" in result.stdout


def test_the_summary_counts_and_says_why_it_ended(run):
    assert "(1 evaluation, " in run("--budget", "1", "--strategy", "exhaustive").stdout
    spent = run("--budget", "20").stdout
    assert "(20 evaluations, " in spent
    assert "its budget is spent" in spent
    assert "nothing is left to try" in run("--strategy", "exhaustive").stdout


def test_replay_in_place_of_a_gpu_is_said_first(run, tables):
    first = run("--budget", "2").stdout.splitlines()[0]
    assert first == f"no Hopper GPU found: replaying times recorded on {H200.name}"
    assert "no Hopper" not in run("--budget", "2", "--device", "replay").output
    failed(run(problem="64x64x64"), "no Hopper GPU found")


def test_a_replay_for_want_of_cupy_says_so(run, monkeypatch):
    monkeypatch.setattr("cupygemm.kernels.driver.why_not_asked", lambda: "CuPy is not installed: do this")
    assert run("--budget", "2").stdout.startswith("no GPU was looked for: CuPy is not installed: do this: replaying")
    failed(run(problem="64x64x64"), "no GPU was looked for: CuPy is not installed: do this, and nothing to replay")


def test_a_folder_of_tables_that_is_not_there_is_said(run, tmp_path):
    failed(run("--device", "replay", "--tables", str(tmp_path / "nowhere")), "nowhere: no such folder")


def test_shapes_may_be_written_as_in_reports(run):
    assert events(run("--json", "--budget", "1", problem="2048×2048×4096"))[-1]["problem"] == PROBLEM.shape


@pytest.mark.parametrize("package", names.NEEDED["hybrid"])
def test_a_missing_package_of_the_search_is_one_line(package, tables):
    source = f"import sys; sys.modules[{package!r}] = None; from cupygemm.cli import main; main()"
    command = [sys.executable, "-c", source, "tune", PROBLEM.shape, "--tables", str(tables), "--device", "replay"]
    command += ["--strategy", "hybrid"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line.endswith(
        f"{package} is not installed: install the extra `search` (pip install '.[search]' in a checkout)"
    )


def test_a_terminal_without_the_letters_is_no_failure(tables):
    source = "from cupygemm.cli import main; main()"
    command = [sys.executable, "-c", source, "tune", PROBLEM.shape, "--tables", str(tables), "--device", "replay"]
    cyrillic = {**os.environ, "PYTHONIOENCODING": "iso8859-5"}
    done = subprocess.run([*command, "--budget", "3"], capture_output=True, env=cyrillic, check=False)
    assert done.returncode == 0, done.stderr
    assert b" ?s" in done.stdout


def test_the_version_is_told():
    assert CliRunner().invoke(cli.main, ["--version"]).stdout.strip() == f"cupygemm, version {cupygemm.__version__}"


def test_answers_from_a_table_are_stored_only_on_request(tables, tmp_path, monkeypatch):
    monkeypatch.setenv("CUPYGEMM_DATA_DIR", str(tmp_path / "data"))
    command = ["tune", PROBLEM.shape, "--tables", str(tables), "--device", "replay", "--budget", "2"]
    assert CliRunner().invoke(cli.main, command).exit_code == 0
    assert not (tmp_path / "data").exists()


def test_a_store_that_was_asked_for_must_open(run, tmp_path):
    (tmp_path / "file").write_text("in the way")
    result = run("--store", str(tmp_path / "file" / "trials.sqlite"))
    failed(result, "trial store")
    assert "--store FILE or CUPYGEMM_DATA_DIR" in result.stderr


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


def test_a_hundred_evaluations_end_soon(tmp_path, core_table):
    core_table.write(tmp_path / file_name(PROBLEM, H200))
    options = ["--tables", str(tmp_path), "--store", str(tmp_path / "s.sqlite"), "--device", "replay"]
    # Of the processor: what else runs here makes it late, and not longer.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    source = "from cupygemm.cli import main; main()"
    command = [sys.executable, "-c", source, "tune", PROBLEM.shape, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "(100 evaluations," in done.stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 15


def test_importing_the_command_line_is_cheap():
    heavy = ("numpy", "pydantic", "yaml", "rich", "cupy", "cuda", "jax", "cmaes", "cupygemm.search")
    source = f"import sys, cupygemm.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


COMMANDS = {(), *((name,) for name in cli.main.commands), *(tuple(p.split()) for p in command_help.paths(cli.main))}


@pytest.mark.parametrize("args", sorted(COMMANDS), ids=" ".join)
def test_every_command_explains_itself(args):
    result = CliRunner().invoke(cli.main, [*args, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


def test_help_needs_no_package_of_the_search():
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in ("numpy", "rich", *names.SEARCH_PACKAGES))
    source = f"import sys; {blocked}from cupygemm.cli import main; main(['tune', '--help'])"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "hybrid" in done.stdout
