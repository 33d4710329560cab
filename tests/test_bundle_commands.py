"""`cupygemm bundle`: what is shown of a bundle, and what is said against it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml
from click.testing import CliRunner

from cupygemm import cli
from cupygemm.bundles.bundle import Bundle
from cupygemm.bundles.bundle_check import findings
from cupygemm.bundles.in_force import shipped_bundle
from cupygemm.device import H200
from cupygemm.kernels import kernel_source
from tests.commands import PROBLEM, SMALL, failed


@pytest.fixture
def path(run, tmp_path):
    path = tmp_path / "tuned.yaml"
    for problem in (PROBLEM, SMALL):
        assert run("--budget", "5", "-o", str(path), problem=problem.shape).exit_code == 0
    return path


def bundle(*args: object):
    return CliRunner().invoke(cli.main, ["bundle", *map(str, args)])


def edit(path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_valid_bundle_is_called_so(path):
    result = bundle("validate", path)
    assert result.exit_code == 0
    assert result.stdout == f"{path}: valid, 2 entries\n"


def test_every_value_of_an_entry_is_shown_whole(path):
    result = bundle("show", path)
    assert result.exit_code == 0
    words = result.stdout.split()
    for entry in Bundle.load(path).entries:
        assert str(entry.problem) in result.stdout.splitlines()
        assert f"us={entry.measured.us:.2f}" in words
        assert f"speedup={entry.measured.speedup:.3f}" in words
        assert {f"{name}={value}" for name, value in entry.config.to_dict().items()} <= set(words)
    assert {"strategy=cma", "evaluations=5", H200.name.split()[-1] + ","} <= set(words)
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert all(letter.isascii() or letter == "µ" for letter in result.stdout)


def test_a_program_gets_the_whole_bundle(path):
    result = bundle("show", "--json", path)
    assert result.exit_code == 0
    assert json.loads(result.stdout) == yaml.safe_load(path.read_text())


@pytest.mark.parametrize("hostile", ["[/red]", "[bold]x", "\x1b[2J", "\u202e", "two\nlines"])
@pytest.mark.parametrize("key", ["name", "strategy", "created"])
def test_values_from_strangers_are_shown_as_they_are_and_do_nothing(path, hostile, key):
    document = yaml.safe_load(path.read_text())
    at = {"name": document["device"], "strategy": document["entries"][0]["search"], "created": document}[key]
    at[key] = hostile
    path.write_text(yaml.safe_dump(document))
    result = bundle("show", path)
    assert result.exit_code == 0, result.output
    assert hostile.isprintable() == (hostile in result.stdout)
    assert all(letter.isprintable() or letter == "\n" for letter in result.stdout)
    assert json.loads(bundle("show", "--json", path).stdout)


def test_an_error_about_a_hostile_key_is_safe(path):
    path.write_text(path.read_text().replace("block_m:", '"\\e[2J":', 1))
    result = bundle("validate", path)
    assert result.exit_code == 1
    assert "\x1b" not in result.stderr


@pytest.mark.parametrize("command", ["show", "validate"])
def test_a_broken_bundle_is_one_line(path, command):
    edit(path, "block_m:", "blok_m:")
    failed(bundle(command, path), "entries[0].config: missing block_m")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("stages", "99", "(2048x2048x4096 float16 nn): its config cannot run: 99 stages"),
        ("m", str(2**31), f"m is {2**31}: kernels take at most {2**31 - 2048}"),
        ("speedup", "9.5", "speedup is 9.500, but cublas_us / us is"),
    ],
)
def test_what_cannot_be_true_is_not_valid(path, key, value, words):
    document = yaml.safe_load(path.read_text())
    first = document["entries"][0]
    part = next(part for part in (first["config"], first["problem"], first["measured"]) if key in part)
    part[key] = yaml.safe_load(value)
    path.write_text(yaml.safe_dump(document))
    result = bundle("validate", path)
    failed(result, words)
    assert f"{path}: entries[0]" in result.stderr
    assert bundle("show", path).exit_code == 0


def test_a_speedup_may_be_rounded(path):
    loaded = Bundle.load(path)
    measured = loaded.entries[0].measured
    edit(path, f"speedup: {measured.speedup}", f"speedup: {measured.speedup * 1.009}")
    assert findings(Bundle.load(path)) == []


def test_what_matmul_leaves_to_cublas_is_marked(path):
    document = yaml.safe_load(path.read_text())
    measured = document["entries"][0]["measured"]
    measured["cublas_us"], measured["speedup"] = measured["us"] * 0.9, 0.9
    path.write_text(yaml.safe_dump(document))
    assert bundle("show", path).stdout.count("slower than cuBLAS, which matmul therefore runs") == 1


def test_entries_of_other_sources_are_marked_and_valid(path):
    document = yaml.safe_load(path.read_text())
    document["entries"][0]["provenance"]["source_digest"] = kernel_source.source_digest()
    path.write_text(yaml.safe_dump(document))
    shown = " ".join(bundle("show", path).stdout.split())
    assert shown.count(f"recorded with other kernel sources (d1, now {kernel_source.source_digest()}): nothing") == 1
    assert shown.count("recorded elsewhere and replayed: nothing was measured here") == 1
    assert shown.count("`cupygemm tune` on a Hopper GPU measures anew") == 2
    result = bundle("validate", path)
    assert result.exit_code == 0
    assert result.stderr.startswith("1 entry measured with other kernel sources than those here: used all the same")


def test_without_a_path_the_shipped_bundle_is_shown():
    result = bundle("show", "--json")
    assert result.exit_code == 0
    assert len(json.loads(result.stdout)["entries"]) == len(shipped_bundle().entries)


def test_many_findings_are_counted(path):
    document = yaml.safe_load(path.read_text())
    entry = document["entries"][0]
    entry["config"]["group"] = 1000
    document["entries"] = [{**entry, "problem": {**entry["problem"], "m": m}} for m in range(1, 10)]
    path.write_text(json.dumps(document))  # is YAML, and has no aliases
    failed(bundle("validate", path), "and 4 more")


def test_a_device_that_no_kernel_runs_on_is_a_finding(path):
    loaded = Bundle.load(path)
    ampere = loaded.model_copy(update={"device": loaded.device.model_copy(update={"compute_capability": [8, 0]})})
    assert all("compute capability 8.0" in finding for finding in findings(ampere))
    assert len(findings(ampere)) == 2


def test_another_hopper_has_as_much_shared_memory(path):
    loaded = Bundle.load(path)
    other = replace(H200, name="NVIDIA H100 PCIe", sm_count=114)
    update = {"name": other.name, "sm_count": other.sm_count}
    assert findings(loaded.model_copy(update={"device": loaded.device.model_copy(update=update)})) == []


def test_merging_keeps_the_better_entry_of_each_problem(path, run, tmp_path):
    worse, output = tmp_path / "worse.yaml", tmp_path / "all.yaml"
    assert run("--strategy", "random", "--budget", "1", "-o", str(worse), problem=SMALL.shape).exit_code == 0
    assert Bundle.load(path).entry(SMALL).beats(Bundle.load(worse).entry(SMALL))
    for order in ((path, worse), (worse, path)):
        result = bundle("merge", *order, "-o", output)
        assert result.exit_code == 0, result.output
        assert result.stdout == f"{output}: 2 entries of 2 bundles\n"
        merged = Bundle.load(output)
        assert {entry.problem for entry in merged.entries} == {PROBLEM, SMALL}
        assert merged.entry(SMALL) == Bundle.load(path).entry(SMALL)


def test_bundles_of_several_kernel_sources_are_merged(path, tmp_path):
    other, output = tmp_path / "other.yaml", tmp_path / "all.yaml"
    document = yaml.safe_load(path.read_text())
    document["tool"]["source_digest"] = "d2"
    document["entries"] = [{**document["entries"][0], "provenance": {}}]
    document["entries"][0]["problem"]["m"] = 8
    other.write_text(yaml.safe_dump(document))
    assert bundle("merge", path, other, "-o", output).exit_code == 0
    merged = Bundle.load(output)
    assert [merged.source_digest_of(entry) for entry in merged.entries] == ["d1", "d1", "d2"]


def test_bundles_that_do_not_belong_together_are_not_merged(path, tmp_path):
    other, output = tmp_path / "other.yaml", tmp_path / "all.yaml"
    other.write_text(path.read_text())
    edit(other, "sm_count: 132", "sm_count: 114")
    failed(bundle("merge", path, other, "-o", output), "keep a bundle for each device")
    failed(bundle("merge", path, other, "-o", output), str(other))
    assert not output.exists()
