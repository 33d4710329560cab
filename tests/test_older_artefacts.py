"""What was written before a field existed is still read, with the field's default."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import pytest
import yaml
from pydantic import PlainValidator

from cupygemm.bundles import bundle
from cupygemm.bundles.bundle import Bundle, Entry
from cupygemm.config import KernelConfig, KernelSpec
from cupygemm.errors import BundleError, ConfigError
from cupygemm.problem import Problem
from cupygemm.search.recordings import table
from cupygemm.search.recordings.recorded import recorded_tables
from cupygemm.search.recordings.table import Table
from cupygemm.search.spaces import space
from cupygemm.search.spaces.space import Knob
from tests.fake_products import LARGE, PROBLEM, bundle_of

FIRST_FIELDS = ["block_m", "block_n", "block_k", "stages", "consumers", "split_n", "cluster_m", "cluster_n"]
FIRST_FIELDS += ["raster_along_n", "group", "producer_registers", "wait_depth", "store_stages"]


@dataclass(frozen=True, order=True)
class LaterConfig(KernelConfig):
    """A config of a later version."""

    later_knob: int = 3


@dataclass(frozen=True, order=True)
class LaterProblem(Problem):
    """A problem of a later version."""

    bias: str = "none"


@dataclass(frozen=True)
class LaterSpec(KernelSpec):
    """A spec of a later version."""

    bias: str = "none"


class LaterEntry(Entry):
    """An entry as a later version reads it, with the validators of the real one."""

    config: Annotated[LaterConfig, PlainValidator(bundle._reader(LaterConfig))]
    problem: Annotated[LaterProblem, PlainValidator(bundle._reader(LaterProblem))]


class LaterBundle(Bundle):
    """A bundle as a later version reads it."""

    entries: list[LaterEntry]  # type: ignore[assignment]


def without_defaults(config: KernelConfig) -> dict[str, int | bool]:
    """A config as the first version wrote it, when no field had a default."""
    return {name: value for name, value in config.to_dict().items() if name in FIRST_FIELDS}


def test_fields_added_since_the_first_version_have_defaults() -> None:
    KernelConfig.from_dict(without_defaults(LARGE))
    assert [field.name for field in fields(KernelConfig)][: len(FIRST_FIELDS)] == FIRST_FIELDS


def test_a_config_without_the_field_gets_its_default() -> None:
    assert LaterConfig.from_dict(LARGE.to_dict()) == LaterConfig(**LARGE.to_dict(), later_knob=3)
    assert LaterConfig.from_dict({**LARGE.to_dict(), "later_knob": 5}).later_knob == 5
    with pytest.raises(ConfigError, match=r"missing \['group'\]"):
        LaterConfig.from_dict({name: value for name, value in LARGE.to_dict().items() if name != "group"})
    with pytest.raises(ConfigError, match=r"unknown \['later_knob'\]"):
        KernelConfig.from_dict({**LARGE.to_dict(), "later_knob": 5})


def test_a_bundle_without_the_fields_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tuned.yaml"
    bundle_of(PROBLEM, config=LARGE).save(path)
    (entry,) = LaterBundle.load(path).entries
    assert entry.config == LaterConfig(**LARGE.to_dict(), later_knob=3)
    assert entry.problem == LaterProblem(**PROBLEM.to_dict(), bias="none")
    document = yaml.safe_load(path.read_text())
    document["entries"][0]["config"]["later_knob"] = 5
    path.write_text(yaml.safe_dump(document))
    assert LaterBundle.load(path).entries[0].config.later_knob == 5
    with pytest.raises(BundleError, match=r"entries\[0\]\.config: unknown later_knob"):
        Bundle.load(path)


def test_a_bundle_of_the_first_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tuned.yaml"
    bundle_of(PROBLEM, config=LARGE).save(path)
    document = yaml.safe_load(path.read_text())
    document["entries"][0]["config"] = without_defaults(LARGE)
    path.write_text(yaml.safe_dump(document))
    assert Bundle.load(path).entries[0].config == LARGE


def later_table(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (space, table):
        monkeypatch.setattr(module, "KernelConfig", LaterConfig)
    monkeypatch.setattr(table, "KernelSpec", LaterSpec)
    monkeypatch.setattr(space, "FIELD_NAMES", tuple(field.name for field in fields(LaterConfig)))


def test_a_table_without_the_fields_is_read(toy_table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, again = tmp_path / "old.jsonl.gz", tmp_path / "new.jsonl.gz"
    toy_table.write(path)
    spec = toy_table.spec.to_dict()
    later_table(monkeypatch)
    read = Table.read(path)
    assert read.knobs == (*toy_table.knobs, Knob("later_knob", (3,)))
    assert dict(read.rows) == {LaterConfig(**c.to_dict(), later_knob=3): row for c, row in toy_table.rows.items()}
    assert read.spec == LaterSpec(**spec, bias="none")
    read.check_exhaustive()
    read.write(again)
    assert Table.read(again) == read


def test_the_recorded_tables_are_read_by_a_later_version(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [table.path for table in recorded_tables()]
    assert paths
    before = [list(Table.read(path).rows.values()) for path in paths]
    later_table(monkeypatch)
    tables = [Table.read(path) for path in paths]
    assert [list(each.rows.values()) for each in tables] == before
    assert {config.later_knob for each in tables for config in each.rows} == {3}  # type: ignore[attr-defined]
