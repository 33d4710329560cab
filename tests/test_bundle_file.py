"""The bundle a search adds to: which entry stays, who else writes it, and what it does when it cannot be written."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest
import yaml

from cupygemm.bundles.bundle import Bundle, SearchInfo
from cupygemm.device import H200
from cupygemm.errors import BundleError
from cupygemm.kernels.kernel_source import source_digest
from cupygemm.measurement import Measurement, Record, Status
from cupygemm.search import bundle_file
from cupygemm.search.bundle_file import BundleFile
from cupygemm.search.recordings.recorded import file_name
from cupygemm.search.target import replay_target
from tests.commands import PROBLEM, SMALL, events, failed

SEARCH = SearchInfo(strategy="random", seed=0, evaluations=1)


@pytest.fixture
def target(tables):
    return replay_target(PROBLEM, tables)


def result(target, us: float, problem=PROBLEM, cublas_us: float | None = 50.0) -> Record:
    baseline = () if cublas_us is None else (cublas_us,)
    return Record(problem, next(iter(target.recorded.rows)), Measurement(Status.OK, (us,), baseline))


def test_a_bundle_that_exists_is_added_to(run, tmp_path):
    output = tmp_path / "tuned.yaml"
    for problem, budget in ((PROBLEM, "1"), (SMALL, "5"), (PROBLEM, "60")):
        result = run("--strategy", "random", "--budget", budget, "-o", str(output), problem=problem.shape)
        assert result.exit_code == 0, result.output
    entries = Bundle.load(output).entries
    assert [entry.problem for entry in entries] == [PROBLEM, SMALL]
    assert [entry.search.evaluations for entry in entries] == [60, 5]


def test_an_entry_of_other_sources_gives_way_to_what_a_gpu_measures(tmp_path, target):
    path = tmp_path / "tuned.yaml"
    for problem in (PROBLEM, SMALL):
        BundleFile(path, replace(target, recorded=None)).add(result(target, 40.0, problem), SEARCH)
    on_gpu = BundleFile(path, replace(target, recorded=None, source_digest="d2", provenance={"source_digest": "d2"}))
    assert on_gpu.replaces(PROBLEM) == "is of other kernel sources"
    assert on_gpu.replaces(replace(PROBLEM, m=8)) is None
    assert on_gpu.add(result(target, 45.0), SEARCH).change == "replaced"
    assert on_gpu.replaces(PROBLEM) is None
    assert on_gpu.add(result(target, 46.0), SEARCH).change == "kept"
    saved = Bundle.load(path)
    assert {entry.problem: saved.source_digest_of(entry) for entry in saved.entries} == {PROBLEM: "d2", SMALL: "d1"}


def test_what_was_replayed_gives_way_to_any_measurement_and_takes_the_place_of_none(run, tmp_path, target):
    path = tmp_path / "tuned.yaml"
    BundleFile(path, target).add(result(target, 1.0), SEARCH)
    on_gpu = BundleFile(path, replace(target, recorded=None))
    assert on_gpu.replaces(PROBLEM) == "was replayed"
    assert on_gpu.add(result(target, 45.0), SEARCH).change == "replaced"
    assert on_gpu.replaces(PROBLEM) is None
    done = run("--budget", "5", "-o", str(path))
    assert "keeps its entry of 45.00 µs (1.111× cuBLAS), which was measured" in done.stdout
    assert Bundle.load(path).entries[0].measured.us == 45.0


@pytest.mark.parametrize(("provenance", "digest"), [({"cp_async_source_digest": "c1"}, "c1"), ({}, "unknown")])
def test_a_config_that_copies_has_the_digest_of_its_own_page(tmp_path, target, provenance, digest):
    config, row = next(iter(target.recorded.rows.items()))
    copying = config.swapped(cp_async_stages=1)
    recorded = replace(target.recorded, rows={config: row, copying: row})
    path = tmp_path / "tuned.yaml"
    best = replace(result(target, 40.0), config=copying)
    BundleFile(path, replace(target, recorded=recorded, provenance=provenance)).add(best, SEARCH)
    (entry,) = Bundle.load(path).entries
    assert Bundle.load(path).source_digest_of(entry) == digest
    on_gpu = replace(target, recorded=None)
    assert on_gpu.source_digest_of(copying) == source_digest(copying) != source_digest(config)
    assert on_gpu.source_digest_of(config) == target.source_digest


def test_a_replay_replaces_entries_of_other_sources_only_if_it_is_better(tmp_path, target):
    path = tmp_path / "tuned.yaml"
    BundleFile(path, replace(target, source_digest="d2", provenance={})).add(result(target, 45.0), SEARCH)
    replayed = BundleFile(path, target)
    assert replayed.replaces(PROBLEM) is None
    assert replayed.add(result(target, 46.0), SEARCH).change == "kept"
    assert replayed.add(result(target, 44.0), SEARCH).change == "replaced"


def test_a_search_says_that_it_replaces_what_other_sources_measured(run, tmp_path, target, monkeypatch):
    output = tmp_path / "tuned.yaml"
    BundleFile(output, target).add(result(target, 45.0), SEARCH)
    monkeypatch.setattr(BundleFile, "replaces", lambda self, problem: "is of other kernel sources")
    done = run("--budget", "5", "-o", str(output))
    assert done.exit_code == 0
    assert f"its entry for {PROBLEM} is of other kernel sources and will be replaced" in done.stderr


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


def test_two_searches_that_end_together_both_stay(tmp_path, target):
    path = tmp_path / "tuned.yaml"
    problems = [replace(PROBLEM, m=8 * n) for n in range(1, 17)]
    files = [BundleFile(path, target) for _ in problems]  # all read before any writes
    threads = [
        threading.Thread(target=file.add, args=(result(target, 40.0, problem), SEARCH))
        for file, problem in zip(files, problems, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {entry.problem for entry in Bundle.load(path).entries} == set(problems)


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ((40.0, 50.0), (41.0, 50.0), "kept"),
        ((40.0, 50.0), (39.0, 50.0), "replaced"),
        ((40.0, 50.0), (40.0, 50.0), "kept"),
        ((40.0, 50.0), (44.0, 60.0), "replaced"),  # a slower clock that day, and the better kernel
        ((40.0, 50.0), (36.0, 40.0), "kept"),
        ((40.0, None), (41.0, 50.0), "kept"),
        ((40.0, 50.0), (39.0, None), "replaced"),
    ],
)
def test_the_better_entry_stays(tmp_path, target, old, new, change):
    path = tmp_path / "tuned.yaml"
    first = BundleFile(path, target).add(result(target, *_placed(old)), SEARCH)
    second = BundleFile(path, target).add(result(target, *_placed(new)), SEARCH)
    assert (first.change, first.before) == ("added", None)
    assert (second.change, second.before.measured.us) == (change, old[0])
    assert Bundle.load(path).entries[0].measured.us == (old if change == "kept" else new)[0]


def _placed(times: tuple) -> tuple:
    us, cublas_us = times
    return us, PROBLEM, cublas_us


def test_a_worse_result_says_that_it_is_not_kept(run, tmp_path):
    output = str(tmp_path / "tuned.yaml")
    good = events(run("--json", "--strategy", "exhaustive", "-o", output))[-1]
    assert (good["bundle_entry"], good["entry_before"]) == ("added", None)
    bad = events(run("--json", "--strategy", "exhaustive", "--budget", "1", "-o", output))[-1]
    assert (bad["bundle"], bad["bundle_entry"]) == (output, "kept")
    assert bad["entry_before"] == {"us": good["best_us"], "speedup": good["speedup"], "recorded": True}
    words = run("--strategy", "exhaustive", "--budget", "1", "-o", output).stdout
    assert f"keeps its entry of {good['best_us']:.2f} µs" in words
    assert f"{bad['best_us']:.2f} µs" in words
    assert "is no better" in words


def test_a_replaced_entry_is_told_with_both_results(run, tmp_path):
    output = str(tmp_path / "tuned.yaml")
    bad = events(run("--json", "--strategy", "exhaustive", "--budget", "1", "-o", output))[-1]
    good = run("--strategy", "exhaustive", "-o", output).stdout
    assert f"replaces an entry of {bad['best_us']:.2f} µs" in good


def test_a_folder_that_takes_no_file_is_found_out_first(run, tmp_path):
    (tmp_path / "file").write_text("in the way")
    output = tmp_path / "file" / "tuned.yaml"
    failed(run("-o", str(output)), f"{output}: Not a directory")


def test_a_result_that_cannot_be_saved_is_shown(run, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "/somewhere/.tuned.yaml.x.tmp")

    monkeypatch.setattr("os.replace", full)
    output = tmp_path / "tuned.yaml"
    found = run("--json", "--budget", "5", "-o", str(output))
    assert found.exit_code == 1
    assert found.stderr.splitlines()[1:] == [f"Error: {output}: No space left on device"]
    last = json.loads(found.stdout.splitlines()[-1])
    assert (last["event"], last["evaluations"], last["bundle"]) == ("result", 5, None)


def test_a_lock_that_is_not_let_go_names_the_bundle(tmp_path, target, monkeypatch):
    path = tmp_path / "tuned.yaml"
    monkeypatch.setattr(bundle_file, "LOCK_S", 0.05)
    with bundle_file.FileLock(tmp_path / ".tuned.yaml.lock"), pytest.raises(OSError, match="lock") as caught:
        BundleFile(path, target).add(result(target, 40.0), SEARCH)
    assert caught.value.filename == str(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "NVIDIA H100"}, "its name is NVIDIA H100, not NVIDIA H200"),
        ({"sm_count": 114}, "its number of SMs is 114, not 132"),
        ({"compute_capability": [10, 0]}, "its compute capability is 10.0, not 9.0"),
    ],
)
def test_another_device_is_told_by_what_differs(tmp_path, target, change, words):
    path = tmp_path / "tuned.yaml"
    BundleFile(path, target).add(result(target, 40.0), SEARCH)
    document = yaml.safe_load(path.read_text())
    document["device"].update(change)
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(BundleError, match=words):
        BundleFile(path, target)
