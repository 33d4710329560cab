"""The pictures in docs: small, the same each time, and of the figures that are recorded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bench import compare, pictures
from bench.comparison import drawing, picture
from cupygemm.measuring.results import COMPARISON_SCHEMA
from cupygemm.reports.report import read_file

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def nothing_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "SEARCHES", tmp_path / "searches.jsonl.gz")


def run(folder: Path, *more: str) -> dict[str, Any]:
    output = folder / "compare.json"
    options = ["--processes", "1", "--budgets", "5", "20", "--seeds", "2", "--work", str(folder)]
    options += ["--progress", str(folder / "progress.jsonl")]
    assert compare.main([*options, *more, "-o", str(output)]) == 0
    return json.loads(output.read_text())


def test_pictures_are_small_and_the_same_each_time(tmp_path: Path, tables: Path) -> None:
    run(tmp_path, "--tables", str(tables), "--strategies", "local", "nearest+")
    shutil.copy(ROOT / "bench" / "results" / "transfer.json", tmp_path)
    drawn = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        assert pictures.main(["--results", str(tmp_path), "-o", str(tmp_path / name)]) == 0
        files = sorted((tmp_path / name).iterdir())
        assert [file.name for file in files] == [pictures.STRATEGIES, pictures.SUGGESTIONS]
        assert all(file.stat().st_size < 150_000 for file in files)
        drawn.append([file.read_bytes() for file in files])
    assert drawn[0] == drawn[1]
    assert drawing.digest(pictures.curves_of(read_file(tmp_path / "compare.json"))) in drawn[0][0].decode()


def test_a_comparison_without_curves_is_not_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = {"schema": COMPARISON_SCHEMA, "groups": [{"name": "recorded"}]}
    (tmp_path / "compare.json").write_text(json.dumps(document))
    with pytest.raises(SystemExit):
        pictures.main(["--results", str(tmp_path), "-o", str(tmp_path)])
    assert "write it anew with bench.compare" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "figures"),
    [(pictures.STRATEGIES, pictures.curves_of), (pictures.SUGGESTIONS, pictures.suggestions_of)],
)
def test_pictures_are_of_the_figures_that_are_recorded(name: str, figures: Any) -> None:
    source = {pictures.STRATEGIES: "compare", pictures.SUGGESTIONS: "transfer"}[name]
    recorded = json.loads((ROOT / "bench" / "results" / f"{source}.json").read_text())
    assert drawing.digest(figures(recorded)) in (ROOT / "docs" / name).read_text()


def test_the_picture_is_of_the_figures_that_are_recorded() -> None:
    recorded = json.loads((ROOT / "bench" / "results" / "compare.json").read_text())
    assert picture.digest(recorded) in (ROOT / "docs" / "compare.svg").read_text()
