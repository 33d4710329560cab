"""What Ctrl-C and SIGTERM leave behind: the best so far where there is one, else one line and status 130."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from cupygemm import cli
from cupygemm.bundles.bundle import Bundle
from cupygemm.search.interruption import uninterrupted
from cupygemm.search.policy.families import family
from tests.commands import PROBLEM

SLOW = """
import time
from cupygemm import cli; from cupygemm.kernels import driver
from cupygemm.search.runners.replay import ReplayRunner
quick = ReplayRunner._answer
def slow(self, config):
    time.sleep(0.05)
    return quick(self, config)
ReplayRunner._answer = slow
driver.hopper_devices = list
cli.main()
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_search_leaves_a_valid_bundle(tmp_path, tables, how):
    output = tmp_path / "tuned.yaml"
    command = ["tune", PROBLEM.shape, "--tables", str(tables), "--store", str(tmp_path / "s.sqlite"), "--json"]
    command += ["--strategy", "random", "--budget", "10000", "-o", str(output)]
    process = subprocess.Popen([sys.executable, "-c", SLOW, *command], stdout=subprocess.PIPE, text=True)
    lines = [process.stdout.readline() for _ in range(5)]
    for _ in range(2):  # `timeout` and terminals signal a process and its group
        os.kill(process.pid, how)
    rest, _ = process.communicate(timeout=30)
    *trials, last = [json.loads(line) for line in [*lines, *rest.splitlines()]]
    assert process.returncode == 0
    assert last["stopped_by"] == "interrupted"
    assert last["evaluations"] == len(trials) < 1000
    assert Bundle.load(output).entries[0].measured.us == last["best_us"]


IN_THE_MIDDLE = """
import os, signal
from cupygemm import cli; from cupygemm.kernels import driver
from cupygemm.search.strategies.random_search import RandomSearch
ask = RandomSearch.ask
def interrupted(self):
    os.kill(os.getpid(), signal.{how})
    found = ask(self)
    print("asked to the end", flush=True)
    return found
RandomSearch.ask = interrupted
driver.hopper_devices = list
cli.main()
"""


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM"])
def test_a_strategy_is_not_interrupted_in_the_middle(tables, how):
    command = ["tune", PROBLEM.shape, "--tables", str(tables), "--json", "--strategy", "random"]
    source = IN_THE_MIDDLE.format(how=how)
    done = subprocess.run([sys.executable, "-c", source, *command], capture_output=True, text=True, check=False)
    said, last = done.stdout.splitlines()
    assert said == "asked to the end"
    assert json.loads(last)["stopped_by"] == "interrupted"
    assert (done.returncode, done.stderr) == (130, "strategy: random (as asked)\ninterrupted\n")


def test_outside_the_main_thread_there_is_nothing_to_hold_back():
    done = []

    def work() -> None:
        with uninterrupted():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done


BEFORE_THE_FIRST_TRIAL = """
import os, signal
from cupygemm import cli; from cupygemm.kernels import driver
driver.hopper_devices = lambda: os.kill(os.getpid(), signal.{how})
cli.main()
"""
# A shell starts what it runs in the background with SIGINT ignored, and Python keeps that.
WHILE_IMPORTING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupt:
    def find_spec(self, name, *rest):
        if name == "cupygemm.cli":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from cupygemm.__main__ import run
run()
"""


@pytest.mark.parametrize(
    "source",
    [BEFORE_THE_FIRST_TRIAL.format(how="SIGINT"), BEFORE_THE_FIRST_TRIAL.format(how="SIGTERM"), WHILE_IMPORTING],
)
def test_with_nothing_to_keep_it_is_one_line(source):
    command = [sys.executable, "-c", source, "tune", PROBLEM.shape]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


NO_TRIAL_YET = """
from cupygemm import cli; from cupygemm.kernels import driver
from cupygemm.search.runners.replay import ReplayRunner
def interrupt(*_):
    raise KeyboardInterrupt
ReplayRunner.run = interrupt
driver.hopper_devices = list
cli.main()
"""


def test_a_search_interrupted_before_it_knew_anything_says_so(tmp_path, tables):
    output = tmp_path / "tuned.yaml"
    command = ["tune", PROBLEM.shape, "--tables", str(tables), "--json", "-o", str(output)]
    done = subprocess.run([sys.executable, "-c", NO_TRIAL_YET, *command], capture_output=True, text=True, check=False)
    chosen = "strategy: cma (the shipped policy was trained on this very table, so it does not guide; "
    chosen += f"cupygemm train --without {family(PROBLEM)} -o policy.npz makes one that may, as --policy policy.npz)"
    assert (done.returncode, done.stderr) == (130, f"{chosen}\ninterrupted\n")
    assert json.loads(done.stdout)["stopped_by"] == "interrupted"
    assert not output.exists()


def test_signals_close_together_are_one_interruption(monkeypatch):
    clock = iter([100.0, 100.5, 100.9, 101.1])
    monkeypatch.setattr(cli.time, "monotonic", lambda: next(clock))
    interrupt = cli._Interrupt()
    with pytest.raises(KeyboardInterrupt):
        interrupt(signal.SIGTERM, None)
    for _ in range(2):
        interrupt(signal.SIGINT, None)
    with pytest.raises(KeyboardInterrupt):
        interrupt(signal.SIGINT, None)
