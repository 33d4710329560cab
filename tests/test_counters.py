"""Counters: what is made of ncu's output, and what of its absence. ncu itself is stood in for by a script."""

from __future__ import annotations

import json
import logging
import re

import pytest

from cupygemm.config import KernelConfig
from cupygemm.errors import LaunchError
from cupygemm.kernels.kernel_source import entry_of
from cupygemm.measurement import Measurement, Status
from cupygemm.measuring import counters
from cupygemm.measuring.counters import number, read_counters
from cupygemm.problem import Problem
from cupygemm.search.runners import counted
from cupygemm.search.runners.counted import CountedRunner

PROBLEM = Problem(1024, 1024, 1024)
TIMED = Measurement(Status.OK, samples_us=(5.0,), l2_term=0.9, l2_source="model")
CSV = """\
==PROF== Connected to process 1
"ID","Kernel Name","lts__t_sector_hit_rate.pct","dram__bytes_read.sum","dram__bytes_write.sum"
"","","%","byte","byte"
"0","_Z19gemm_cluster_kernelIXt","75.5","8,388,608","0"
"""


@pytest.fixture
def ncu(tmp_path, monkeypatch):
    """Puts a script called ncu on the PATH; it writes down its arguments and input, and prints what it is told."""

    def install(output: str, status: int = 0):
        (tmp_path / "output").write_text(output)
        script = tmp_path / "ncu"
        script.write_text(
            f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/arguments\ncat > {tmp_path}/input\n'
            f"cat {tmp_path}/output\nexit {status}\n"
        )
        script.chmod(0o755)
        return tmp_path

    monkeypatch.setattr(counters.shutil, "which", lambda name: str(tmp_path / name))
    return install


class Measured:
    """A runner that found these."""

    device = "cuda:0"

    def __init__(self, *measurements: Measurement) -> None:
        self.measurements, self.closed = measurements, False

    def run(self, problem, configs):
        return iter(self.measurements[: len(configs)])

    def confirm(self, problem, configs):
        return list(self.run(problem, configs))

    def close(self) -> None:
        self.closed = True


def configs(toy_table, count: int) -> list[KernelConfig]:
    return list(toy_table.rows)[:count]


def test_rows_are_read_and_the_program_is_given_its_input(ncu):
    folder = ncu(CSV)
    (row,) = read_counters(["program", "-x"], ["dram__bytes_read.sum", "other"], "gemm_", "text")
    assert row["Kernel Name"].startswith("_Z19gemm_cluster_kernel")
    assert number(row["dram__bytes_read.sum"]) == 8388608
    arguments = (folder / "arguments").read_text().splitlines()
    assert arguments[-2:] == ["program", "-x"]
    assert arguments[arguments.index("--metrics") + 1] == "dram__bytes_read.sum,other"
    assert (folder / "input").read_text() == "text"


def test_what_ncu_could_not_do_is_an_error_with_its_words(ncu):
    ncu("==ERROR== ERR_NVGPUCTRPERM", status=1)
    with pytest.raises(LaunchError, match="status 1: ==ERROR== ERR_NVGPUCTRPERM"):
        read_counters(["program"], ["m"], "gemm_")
    ncu("==WARNING== No kernels were profiled")
    with pytest.raises(LaunchError, match="no kernel named like gemm_: ==WARNING=="):
        read_counters(["program"], ["m"], "gemm_")


def test_without_ncu_it_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(counters.shutil, "which", lambda name: None)
    with pytest.raises(LaunchError, match="ncu is not on the PATH"):
        read_counters(["program"], ["m"], "gemm_")


def test_a_metric_without_a_value_is_none():
    assert number("n/a") is None


def test_configs_that_ran_get_counted_figures(ncu, toy_table):
    folder = ncu(CSV)
    failed = Measurement(Status.CRASHED)
    runner = CountedRunner(Measured(failed, TIMED), 3)
    first, second = runner.run(PROBLEM, configs(toy_table, 2))
    assert first == failed
    assert (second.us, second.l2_source, second.l2_hit_rate) == (5.0, "counters", 0.755)
    assert second.l2_term == pytest.approx(PROBLEM.compulsory_bytes / 8388608)
    job = json.loads((folder / "input").read_text())
    assert job["index"] == 3
    assert [KernelConfig.from_dict(fields) for fields in job["configs"]] == configs(toy_table, 2)[1:]


def test_fewer_bytes_than_there_must_be_are_not_believed(ncu, toy_table):
    ncu(CSV.replace("8,388,608", "1,000"))
    (measured,) = CountedRunner(Measured(TIMED), 0).run(PROBLEM, configs(toy_table, 1))
    assert measured.l2_term == 1.0


@pytest.mark.parametrize("output", [CSV + CSV.splitlines()[-1] + "\n", CSV.replace("75.5", "n/a"), "nothing"])
def test_where_counters_cannot_be_read_the_model_stays_and_it_is_said_once(ncu, toy_table, caplog, output):
    ncu(output)
    runner = CountedRunner(Measured(TIMED), 0)
    with caplog.at_level(logging.WARNING, counted.__name__):
        for _ in range(2):
            assert list(runner.run(PROBLEM, configs(toy_table, 1))) == [TIMED]
    assert len(caplog.records) == 1
    assert "modelled, not counted" in caplog.text


def test_the_rest_is_the_other_runner(toy_table):
    inner = Measured(TIMED)
    runner = CountedRunner(inner, 0)
    assert runner.confirm(PROBLEM, configs(toy_table, 1)) == [TIMED]
    runner.close()
    assert inner.closed
    assert runner.device == "cuda:0"


def test_an_interruption_loses_no_measurement(ncu, toy_table):
    class Interrupted(Measured):
        def run(self, problem, configs):
            yield TIMED
            raise KeyboardInterrupt

    running = CountedRunner(Interrupted(), 0).run(PROBLEM, configs(toy_table, 2))
    assert next(running) == TIMED
    with pytest.raises(KeyboardInterrupt):
        next(running)


@pytest.mark.parametrize("cluster_k", [1, 2])
@pytest.mark.parametrize("copied", [0, 2])
def test_kernels_of_every_kind_are_looked_for(monkeypatch, toy_table, cluster_k, copied):
    asked = []

    def read(command, metrics, kernels, stdin):
        asked.append(kernels)
        return [dict.fromkeys(metrics, "50")]

    monkeypatch.setattr(counted, "read_counters", read)
    counted.count(PROBLEM, configs(toy_table, 1), 0)
    config = KernelConfig(64, 64, 64, 4, 1, False, 1, 1, True, 1, 40, 1, 1, cluster_k=cluster_k, cp_async_stages=copied)
    assert re.search(asked[0], f"_Z20{entry_of(config)}IXt")
    assert not re.search(asked[0], "_Z11pack_kernel13PackArguments")
