"""Bundles: exact round trip, errors that name the key, and safety from strangers."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import yaml

from cupygemm.bundles.bundle import Bundle, BundleDevice, Entry, Measured, SearchInfo, new_bundle
from cupygemm.config import KernelConfig
from cupygemm.device import H200
from cupygemm.errors import BundleError
from cupygemm.measurement import Measurement, Status
from cupygemm.problem import Problem

PROBLEM = Problem(2048, 2048, 4096)
OTHER = Problem(512, 512, 8192, out_dtype="float32")
CONFIG = KernelConfig(128, 256, 64, 4, 2, False, 2, 1, True, 8, 40, 1, 2)
MEASUREMENT = Measurement(Status.OK, (47.3, 47.1, 47.9), (50.0, 50.5), error=1.9e-4, registers=168, spill_bytes=0)
VERSIONS = {"driver": "580.159", "cuda": "13.0", "nvrtc": None}


def entry(problem: Problem = PROBLEM, config: KernelConfig = CONFIG) -> Entry:
    return Entry(
        problem=problem,
        config=config,
        measured=Measured.of(MEASUREMENT, cublaslt_us=49.9),
        search=SearchInfo(strategy="cma", seed=0, evaluations=100),
        provenance={"date": "2026-11-29", "commit": "abc", "dirty": False, "power_w": 512.5, "cupy": None},
    )


def bundle(*entries: Entry, digest: str = "d1", device=H200) -> Bundle:
    return new_bundle(BundleDevice.of(device, VERSIONS), digest, entries or (entry(), entry(OTHER)))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "tuned.yaml"
    bundle().save(path)
    return path


def test_a_bundle_reads_as_it_was_written(path):
    assert Bundle.load(path).entries == bundle().entries
    before = path.read_text()
    Bundle.load(path).save(path)
    assert path.read_text() == before


def test_json_is_read_as_the_yaml_that_it_is(path, tmp_path):
    quick = tmp_path / "quick.yaml"
    quick.write_text(bundle().to_json())
    assert Bundle.load(quick).entries == Bundle.load(path).entries
    assert yaml.safe_load(quick.read_text())["entries"] == yaml.safe_load(path.read_text())["entries"]
    assert len(quick.read_text().splitlines()) == len(bundle().entries) + 2
    # A mapping in braces that is no JSON is YAML all the same.
    quick.write_text("{schema: cupygemm.bundle/1, created: '2026'}")
    with pytest.raises(BundleError, match="tool: field required"):
        Bundle.load(quick)


def test_stacks_and_epilogues_are_problems_of_their_own(path):
    variants = [
        replace(PROBLEM, batch=4),
        replace(PROBLEM, epilogue="bias_n+residual+gelu_tanh"),
        replace(PROBLEM, epilogue="bias_n"),
        replace(PROBLEM, batch=4, epilogue="scaled"),
    ]
    bundle(*map(entry, variants)).save(path)
    found = Bundle.load(path)
    assert [each.problem for each in found.entries] == variants
    assert found.entry(PROBLEM) is None
    path.write_text(path.read_text().replace("bias_n+residual", "residual+bias_n"))
    with pytest.raises(BundleError, match=r"epilogue is 'residual\+bias_n\+gelu_tanh': legal are"):
        Bundle.load(path)


def test_the_file_is_laid_out_as_promised(path):
    document = yaml.safe_load(path.read_text())
    assert list(document) == ["schema", "created", "tool", "device", "entries"]
    assert document["schema"] == "cupygemm.bundle/1"
    assert set(document["tool"]) == {"version", "source_digest"}
    assert document["device"] == {"name": H200.name, "compute_capability": [9, 0], "sm_count": 132, **VERSIONS}
    first = document["entries"][0]
    assert first["problem"] == PROBLEM.to_dict()
    assert first["config"] == CONFIG.to_dict()
    assert first["search"] == {"strategy": "cma", "seed": 0, "evaluations": 100}
    measured = first["measured"]
    assert (measured["us"], measured["cublas_us"], measured["cublaslt_us"]) == (47.3, 50.25, 49.9)
    assert measured["speedup"] == pytest.approx(50.25 / 47.3)
    assert measured["registers"] == 168
    assert "&" not in path.read_text()


EDITS = [
    ("schema: cupygemm.bundle/1", "schema: cupygemm.bundle/7", "schema is 'cupygemm.bundle/7'"),
    ("created:", "craeted:", "created: field required"),
    ("source_digest: d1", "source_digest: 5", r"tool\.source_digest"),
    ("- 9\n", "- nine\n", r"device\.compute_capability\[0\]"),
    ("m: 2048", "m: '2048'", r"entries\[0\]\.problem: m is '2048'"),
    ("m: 2048", "mm: 2048", r"entries\[0\]\.problem: missing m and unknown mm; its keys are m, n, k"),
    ("layout: nn", "layout: xy", r"entries\[0\]\.problem: layout is 'xy': legal values are nn, nt"),
    ("block_m: 128", "blok_m: 128", r"entries\[0\]\.config: missing block_m and unknown blok_m"),
    ("split_n: false", "split_n: 0", r"entries\[0\]\.config: split_n is 0: it must be of type bool"),
    ("us: 47.3", "us: -47.3", r"entries\[0\]\.measured\.us: .*greater than 0"),
    ("us: 47.3", "us: .nan", r"entries\[0\]\.measured\.us: .*finite"),
    ("us: 47.3", "us: fast", r"entries\[0\]\.measured\.us: .*number"),
    ("strategy: cma", "strategi: cma", r"entries\[0\]\.search\.strategy: field required"),
    ("  provenance:", "  extra: 1\n  provenance:", r"entries\[0\]\.extra: extra"),
    ("k: 8192", "k: 8192\n    z: 1", r"entries\[1\]\.problem: unknown z"),
    ("entries:\n", "entries: none\nrest:\n", "entries: .*list"),
]


@pytest.mark.parametrize(("old", "new", "what"), EDITS)
def test_an_error_names_the_key_and_what_is_legal(path, old, new, what):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(BundleError, match=what):
        Bundle.load(path)


def test_two_entries_for_one_problem_are_refused(path):
    document = yaml.safe_load(path.read_text())
    document["entries"].append(copy.deepcopy(document["entries"][0]))
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(BundleError, match=r"entries\[2\]: a second entry for 2048x2048x4096"):
        Bundle.load(path)


def test_keys_of_later_versions_are_kept(path):
    text = path.read_text().replace("us: 47.3", "us: 47.3\n    joules: 1.5", 1)
    path.write_text(text)
    Bundle.load(path).save(path)
    assert yaml.safe_load(path.read_text())["entries"][0]["measured"]["joules"] == 1.5


def bomb() -> str:
    levels = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 30)]
    return "\n".join(levels)


HOSTILE = {
    "a tag": ("schema: !!python/object/apply:os.system ['true']", "line 1: aliases, anchors and tags"),
    "bytes": ("schema: !!binary aGVsbG8=", "line 1: aliases, anchors and tags"),
    "aliases": (bomb(), "line 1: aliases, anchors and tags are not allowed"),
    "a merge": ("base: &b {schema: x}\nother:\n  <<: *b", "aliases, anchors and tags"),
    "a key twice": ("schema: x\nschema: cupygemm.bundle/1", r"the key schema stands twice.*line 2"),
    "depth": ("schema: " + "[" * 20 + "]" * 20, "line 1: nested deeper than 12 levels"),
    "endless depth": ("schema: " + "[" * 100_000, "nest"),
    "a huge number": ("schema: cupygemm.bundle/1\ncreated: " + "9" * 100_000, "bundle"),
    "two documents": ("schema: cupygemm.bundle/1\n---\nschema: x", "YAML"),
    "binary": ("\x00\x01\x02", "YAML"),
    "a list": ("- 1\n- 2", "a bundle is a mapping"),
    "nothing": ("", "a bundle is a mapping"),
    "broken syntax": ("schema: [", "YAML"),
    "a key twice in JSON": ('{"schema": 1, "x": {"a": 1, "b": 2, "b": 3}}', "the key b stands twice"),
    "depth in JSON": ('{"schema":\n' + "[" * 20 + "]" * 20 + "}", "line 2: nested deeper than 12 levels"),
    "endless depth in JSON": ('{"schema": ' + "[" * 100_000, "nest"),
    "braces in a string": ('{"schema": "' + "{[" * 20 + '"}', "schema is"),
    "a string without an end": ('{"schema": "' + '\\"' * 100_000, "YAML"),
    "a huge number in JSON": ('{"schema": "cupygemm.bundle/1", "created": ' + "9" * 100_000 + "}", "bundle"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused(tmp_path, kind):
    text, what = HOSTILE[kind]
    path = tmp_path / "bundle.yaml"
    path.write_text(text)
    with pytest.raises(BundleError, match=what):
        Bundle.load(path)


def test_a_file_too_large_is_refused_before_it_is_parsed(path, monkeypatch):
    monkeypatch.setattr("cupygemm.bundles.plain_yaml.MAX_BYTES", 100)
    with pytest.raises(BundleError, match="larger than 100 bytes"):
        Bundle.load(path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "bundle.yaml"
    path.write_bytes(b"schema: \xff\xfe\xfa")
    with pytest.raises(BundleError, match="YAML"):
        Bundle.load(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BundleError, match=r"absent\.yaml: No such file or directory; name a bundle that is there"):
        Bundle.load(tmp_path / "absent.yaml")


def test_a_write_that_fails_leaves_the_old_file(path, monkeypatch):
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        bundle(entry()).save(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_an_entry_is_of_exactly_this_problem():
    assert bundle().entry(PROBLEM) == entry()
    assert bundle().entry(replace(PROBLEM, layout="nt")) is None
    assert bundle().entry(replace(PROBLEM, out_dtype="float32")) is None


def test_entries_do_not_hold_on_another_kind_of_gpu():
    blackwell = replace(H200, compute_capability=(10, 0))
    assert "its compute capability is 9.0, not 10.0" in bundle().mismatch(blackwell)


def test_entries_hold_for_other_kernel_sources_which_it_says():
    loaded = bundle()
    first, second = loaded.entries
    assert loaded.mismatch(H200) is None
    assert loaded.outdated(first, "d1") is None
    for words in ("measured with other kernel sources (d1, now d2)", "cupygemm tune"):
        assert words in loaded.outdated(first, "d2")
    # What an entry says of itself counts more than what the bundle says of all.
    own = second.model_copy(update={"provenance": {"source_digest": "d2"}})
    assert (loaded.outdated(own, "d2"), loaded.source_digest_of(own)) == (None, "d2")
    recorded = second.model_copy(update={"provenance": {"replayed": True}})
    remark = "recorded with other kernel sources (d1, now d2): nothing was measured here, `cupygemm tune`"
    assert loaded.outdated(recorded, "d2").startswith(remark)
    assert loaded.remark(recorded, "d2") == loaded.outdated(recorded, "d2")
    assert loaded.remark(recorded, "d1").startswith("recorded elsewhere and replayed: nothing was measured here")
    assert loaded.remark(first, "d1") is None
    assert first.beats(recorded)
    assert not recorded.beats(first)
    odd = second.model_copy(update={"provenance": {"source_digest": ["d2"]}})
    assert loaded.source_digest_of(odd) == "d1"


@pytest.mark.parametrize(
    ("changes", "speedup", "is_slower"),
    [
        ({}, 50.25 / 47.3, False),
        ({"speedup": 0.99}, 0.99, True),
        ({"speedup": None, "cublas_us": 40.0}, 40.0 / 47.3, True),
        ({"speedup": None, "cublas_us": None}, None, False),
        ({"speedup": 1.0}, 1.0, False),
    ],
)
def test_an_entry_knows_whether_cublas_was_faster(changes, speedup, is_slower):
    first = entry()
    changed = first.model_copy(update={"measured": first.measured.model_copy(update=changes)})
    assert changed.speedup == pytest.approx(speedup)
    assert changed.is_slower is is_slower


@pytest.mark.parametrize("changes", [{"name": "NVIDIA H100"}, {"sm_count": 114}])
def test_entries_hold_on_another_hopper_gpu_which_it_says(changes):
    loaded, device = bundle(), replace(H200, **changes)
    assert loaded.mismatch(device) is None
    for words in ("NVIDIA H200 (132 SMs)", f"{device.name} ({device.sm_count} SMs)", "cupygemm tune"):
        assert words in loaded.elsewhere(device)
    assert loaded.elsewhere(H200) is None


def test_merging_replaces_the_same_problem_and_keeps_the_rest():
    better = entry(config=CONFIG.swapped(group=1))
    new = entry(Problem(8, 8, 8))
    merged = bundle().merged(bundle(better, new))
    assert merged.entries == [better, entry(OTHER), new]


def test_bundles_that_do_not_belong_together_are_not_merged():
    with pytest.raises(BundleError, match="do not belong in a bundle"):
        bundle().merged(bundle(device=replace(H200, name="NVIDIA H100")))


def test_merged_entries_keep_the_sources_that_they_were_measured_with():
    merged = bundle().merged(bundle(entry(), digest="d2"))
    assert merged.tool.source_digest == "d2"
    assert [merged.source_digest_of(each) for each in merged.entries] == ["d2", "d1"]
    again = merged.merged(bundle(entry(Problem(8, 8, 8)), digest="d3"))
    assert [again.source_digest_of(each) for each in again.entries] == ["d2", "d1", "d3"]


def test_only_a_measurement_with_a_time_is_worth_an_entry():
    with pytest.raises(BundleError, match="crashed"):
        Measured.of(Measurement(Status.CRASHED))
    with pytest.raises(ValueError, match="finite"):
        Measured.of(Measurement(Status.OK, (math.inf,)))


def test_a_key_twice_in_an_entry_is_refused(path):
    path.write_text(path.read_text().replace("    stages: 4\n", "    stages: 4\n    stages: 5\n", 1))
    with pytest.raises(BundleError, match="the key stages stands twice"):
        Bundle.load(path)
