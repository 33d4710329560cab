"""`cupygemm record`, and `tune` where there is a GPU, which is a made-up one here."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from cupygemm import cli
from cupygemm.bundles.bundle import Bundle
from cupygemm.device import H200
from cupygemm.errors import LaunchError
from cupygemm.kernels import driver
from cupygemm.measurement import Record
from cupygemm.names import LARGE
from cupygemm.search.recordings.recorded import find_table
from cupygemm.search.runners.replay import ReplayRunner
from cupygemm.search.spaces.declared import SUBSPACES
from cupygemm.search.store import TrialStore
from tests.commands import PROBLEM, SMALL, events, failed


class MadeUpGpu(ReplayRunner):
    """Stands where `GpuRunner` does, and answers from the model of a GPU."""

    device = "cuda:0"
    model = table = stop_at = None

    def __init__(self, device):
        super().__init__(type(self).table)
        self.device_spec = H200

    def baselines(self, problem):
        return {"cublas_us": 50.0, "cublaslt_us": 49.0}

    def compile_ahead(self, problems, configs):
        return len(configs)

    def run(self, problem, configs):
        return (type(self).model(config) for config in configs)

    def sweep(self, problems, configs):
        for index, config in enumerate(configs):
            if index == self.stop_at:
                raise KeyboardInterrupt
            self.swept.append(config)
            for problem in problems:
                yield Record(problem, config, type(self).model(config), self.facts)


@pytest.fixture
def gpu(monkeypatch, toy, toy_table, model):
    facts = {"date": "2026-11-29", "driver": "580.1", "source_digest": "d1"}
    kind = type("Gpu", (MadeUpGpu,), {"model": staticmethod(model), "table": toy_table, "facts": facts, "swept": []})
    monkeypatch.setattr("cupygemm.search.gpu_target.GpuRunner", kind)
    monkeypatch.setattr(
        "cupygemm.measuring.provenance.collect",
        lambda device, command, commit=None, reading=None: {**kind.facts, "commit": commit},
    )
    monkeypatch.setattr(driver, "hopper_devices", lambda: [0])
    monkeypatch.setattr(driver, "device_spec", lambda index: H200)
    monkeypatch.setitem(SUBSPACES, LARGE, toy)
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


def test_a_record_goes_on_where_it_was_interrupted(gpu, tmp_path, toy_table):
    gpu.stop_at = 10
    assert "--resume goes on from there" in record(tmp_path).stderr
    gpu.stop_at = None
    gpu.swept.clear()
    result = record(tmp_path, "--resume")
    assert result.exit_code == 0, result.output
    failing = [config for config, row in toy_table.rows.items() if row.us is None]
    # What did not run is tried again.
    assert len(gpu.swept) == len(toy_table.rows) - 10 + sum(config in failing for config in list(toy_table.rows)[:10])
    for problem in (PROBLEM, SMALL):
        table = find_table(problem, tmp_path / "out")
        table.check_exhaustive()
        assert table.rows == toy_table.rows
    summary = json.loads((tmp_path / "r.json").read_text())["summary"]
    assert summary["pairs_resumed"] == 2 * (len(toy_table.rows) - len(gpu.swept))
    assert summary["pairs"] == summary["pairs_wanted"]


@pytest.mark.parametrize("field", ["driver", "source_digest"])
def test_a_record_does_not_go_on_with_what_was_measured_otherwise(gpu, tmp_path, toy_table, field):
    gpu.stop_at = 10
    record(tmp_path)
    gpu.stop_at = None
    gpu.swept.clear()
    gpu.facts = {**gpu.facts, field: "another"}
    assert record(tmp_path, "--resume").exit_code == 0
    assert len(gpu.swept) == len(toy_table.rows)


def test_record_needs_a_gpu(gpu, tmp_path, monkeypatch):
    assert record(tmp_path, "--device", "replay").exit_code == 2
    monkeypatch.setattr(driver, "device_spec", lambda index: replace(H200, compute_capability=(8, 0)))
    failed(record(tmp_path), "need a Hopper GPU")


def test_record_without_cupy_says_so(gpu, tmp_path, monkeypatch):
    def missing():
        raise LaunchError("CuPy is not installed")

    monkeypatch.undo()
    monkeypatch.setattr(driver, "cupy", missing)
    monkeypatch.setattr(driver, "device_spec", driver.device_spec.__wrapped__)
    failed(record(tmp_path), "CuPy is not installed")


def test_record_finds_out_first_that_it_cannot_write(gpu, tmp_path):
    (tmp_path / "out").write_text("a file where the folder belongs")
    result = CliRunner().invoke(cli.main, ["record", PROBLEM.shape, "-o", str(tmp_path / "out" / "tables")])
    failed(result, f"{tmp_path / 'out' / 'tables'}: ")


def tune(tmp_path, *args: str):
    return CliRunner().invoke(cli.main, ["tune", PROBLEM.shape, "--budget", "3", "--strategy", "exhaustive", *args])


def test_tuning_prefers_a_gpu(gpu, tmp_path):
    output, store = tmp_path / "tuned.yaml", tmp_path / "s.sqlite"
    last = events(tune(tmp_path, "--json", "-o", str(output), "--store", str(store)))[-1]
    assert last["device"] == "cuda:0"
    assert last["evaluations"] == 3
    assert "optimum_us" not in last
    assert Bundle.load(output).entries[0].measured.cublaslt_us == 49.0


def test_measurements_are_stored_by_default(gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("CUPYGEMM_DATA_DIR", str(tmp_path / "data"))
    assert tune(tmp_path).exit_code == 0
    with TrialStore(tmp_path / "data" / "trials.sqlite") as store:
        assert len(store) == 3


def test_a_default_store_that_cannot_be_had_is_said_once(gpu, tmp_path, monkeypatch):
    (tmp_path / "data").write_text("in the way")
    monkeypatch.setenv("CUPYGEMM_DATA_DIR", str(tmp_path / "data"))
    result = tune(tmp_path)
    assert result.exit_code == 0
    line, strategy = result.stderr.splitlines()
    assert strategy.startswith("strategy: ")
    assert "trial store" in line
    assert line.endswith("going on without")


def test_a_store_that_fills_up_does_not_end_the_search(gpu, tmp_path, monkeypatch):
    def full(self, record, runner):
        raise self._error("takes no more trials", OSError("disk full"))

    monkeypatch.setattr(TrialStore, "append", full)
    result = tune(tmp_path, "--store", str(tmp_path / "s.sqlite"))
    assert result.exit_code == 0
    strategy, line = result.stderr.splitlines()
    assert strategy.startswith("strategy: ")
    assert "takes no more trials: disk full" in line
