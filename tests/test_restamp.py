"""Entries are carried over to other kernel sources where these compile to the same machine code, and only there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import restamp
from bench.machine_code import code_digest, known
from cupygemm.bundles.bundle import Bundle
from cupygemm.bundles.in_force import shipped_bundle
from cupygemm.choosing.forecast import SURVEYED_WITH
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.kernels import compiler
from cupygemm.kernels.kernel_source import cp_async_source_digest, source_digest
from cupygemm.problem import Problem

CONFIG = KernelConfig(64, 64, 64, 4, 1, False, 1, 1, True, 4, 40, 1, 1)
OLD = "0123456789abcdef"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Two entries of the shipped bundle, of which the first was measured with other sources."""
    shipped = shipped_bundle()
    first, second = shipped.entries[:2]
    aged = first.model_copy(update={"provenance": {"source_digest": OLD}})
    path = tmp_path / "bundle.yaml"
    path.write_text(shipped.model_copy(update={"entries": [aged, second]}).to_json())
    return path


def made(monkeypatch: pytest.MonkeyPatch, old: restamp.Found, new: restamp.Code) -> None:
    """Both trees compile all kernels to this."""
    monkeypatch.setattr(restamp, "unpack", lambda commit, folder: None)
    monkeypatch.setattr(restamp, "codes", lambda tree, pairs: [new if tree == restamp.ROOT else old for _ in pairs])


def run(monkeypatch: pytest.MonkeyPatch, bundle: Path, old: restamp.Found, new: restamp.Code) -> Bundle:
    """What becomes of the bundle where both trees compile its outdated entries to this."""
    made(monkeypatch, old, new)
    words = ["abc1234", "--bundle", str(bundle), "-o", str(bundle.with_name("out.yaml"))]
    done = CliRunner().invoke(restamp.main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return Bundle.load(bundle.with_name("out.yaml"))


def test_the_same_code_is_of_the_sources_at_hand(monkeypatch: pytest.MonkeyPatch, bundle: Path) -> None:
    entry = Bundle.load(bundle).entries[0]
    now = source_digest(entry.config)
    found = run(monkeypatch, bundle, {"sources": OLD, "code": "x"}, {"sources": now, "code": "x"}).entries
    assert found[0].provenance == {"source_digest": now, restamp.MEASURED_WITH: OLD}
    assert found[1] == Bundle.load(bundle).entries[1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"sources": OLD, "code": "x"}, {"sources": "", "code": "y"}),
        # Of sources that it was not measured with nothing follows.
        ({"sources": "another", "code": "x"}, {"sources": "", "code": "x"}),
        (None, {"sources": "", "code": "x"}),
    ],
)
def test_an_entry_of_other_code_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, bundle: Path, old: restamp.Found, new: restamp.Code
) -> None:
    assert run(monkeypatch, bundle, old, new).entries == Bundle.load(bundle).entries


@pytest.fixture
def survey(tmp_path: Path) -> Path:
    """Of two shapes and three kernels, of which one failed."""
    rows = [
        {"config": [int(value) for value in config.to_dict().values()], "status": status}
        for config, status in (
            (CONFIG, "ok"),
            (CONFIG.swapped(group=8), "ok"),
            (CONFIG.swapped(block_n=32), "ok"),
            (CONFIG.swapped(block_n=16), "launch_failed"),
        )
    ]
    facts = {"commit": "abc1234", "source_digest": OLD, "cp_async_source_digest": OLD}
    head = {"schema": "cupygemm.survey/1", "fields": list(CONFIG.to_dict()), "provenance": facts}
    lines = [{"problem": Problem(m, 64, 64).to_dict(), "rows": rows} for m in (64, 128)]
    path = tmp_path / "survey.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in (head, *lines)))
    return path


def test_a_survey_is_carried_over_where_all_that_ran_is_the_same(monkeypatch: pytest.MonkeyPatch, survey: Path) -> None:
    made(monkeypatch, {"sources": OLD, "code": "x"}, {"sources": "", "code": "x"})
    out = survey.with_name("out.jsonl")
    done = CliRunner().invoke(restamp.main, ["abc1234", "--survey", str(survey), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "2 kernels are the same" in done.output
    head, *lines = out.read_text().splitlines()
    facts = json.loads(head)["provenance"]
    assert [facts[name] for name in SURVEYED_WITH] == [source_digest(), cp_async_source_digest()]
    assert [facts[f"measured_{name}"] for name in SURVEYED_WITH] == [OLD, OLD]
    assert facts["commit"] == "abc1234"
    assert lines == survey.read_text().splitlines()[1:]


@pytest.mark.parametrize(
    ("old", "said"),
    [
        ({"sources": OLD, "code": "y"}, "2 of 2 kernels are others now"),
        ({"sources": "another", "code": "x"}, "surveyed with the sources of none of abc1234"),
    ],
)
def test_a_survey_of_other_kernels_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, survey: Path, old: restamp.Found, said: str
) -> None:
    made(monkeypatch, old, {"sources": "", "code": "x"})
    out = survey.with_name("out.jsonl")
    done = CliRunner().invoke(restamp.main, ["abc1234", "--survey", str(survey), "-o", str(out)])
    assert done.exit_code != 0
    assert said in done.output
    assert not out.exists()


def test_sources_that_do_not_know_a_knob_know_configs_without_it() -> None:
    told = CONFIG.to_dict()
    assert known({**told, "later": False}) == CONFIG
    assert known({**told, "later": 3}) is None


def test_a_commit_that_there_is_not_is_an_error_in_a_line(bundle: Path, tmp_path: Path) -> None:
    words = ["no-such-commit", "--bundle", str(bundle), "-o", str(tmp_path / "out.yaml")]
    done = CliRunner().invoke(restamp.main, words)
    assert done.exit_code != 0
    assert "name a commit of this repository" in done.output
    assert not (tmp_path / "out.yaml").exists()


@pytest.mark.nvrtc
def test_the_digest_is_of_all_that_is_loaded() -> None:
    """The same instructions with other registers, threads, clusters and constants are other code; a name is not."""

    def digest(attributes: str, name: str = "kernel", constant: str = "1") -> str:
        program = f"""
__constant__ int table[2] = {{{constant}, 2}};
template <int> __global__ void {attributes} {name}(int* out) {{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    out[threadIdx.x] = table[out[0] & 1];
}}"""
        return code_digest(compiler.compile_program(f"{name}<0>", {}, program).cubin)

    plain = digest("__launch_bounds__(256, 1)")
    assert plain == digest("__launch_bounds__(256, 1)", name="another_kernel")
    others = [
        digest("__launch_bounds__(384, 1)"),
        digest("__launch_bounds__(512, 1)"),
        digest("__launch_bounds__(256, 1) __cluster_dims__(2, 1, 1)"),
        digest("__launch_bounds__(256, 1) __cluster_dims__(4, 1, 1)"),
        digest("__launch_bounds__(256, 1)", constant="3"),
    ]
    assert len({plain, *others}) == 6


@pytest.mark.nvrtc
def test_the_worker_is_told_of_kernels_and_says_what_they_come_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process of its own, as another commit's package is asked."""
    monkeypatch.setenv("CUPYGEMM_CACHE_DIR", str(tmp_path))
    problem = Problem(64, 64, 64)
    cubin = compiler.compile_kernel(KernelSpec.of(problem), CONFIG).cubin
    pair = {"problem": problem.to_dict(), "config": {**CONFIG.to_dict(), "later": 0}}
    lines = f"{json.dumps(pair)}\n{json.dumps({**pair, 'config': {**CONFIG.to_dict(), 'later': 1}})}\n"
    done = subprocess.run([sys.executable, restamp.WORKER], input=lines, capture_output=True, text=True, check=True)
    first, second = map(json.loads, done.stdout.splitlines())
    assert first == {"sources": source_digest(CONFIG), "code": code_digest(cubin.read_bytes())}
    assert second is None
