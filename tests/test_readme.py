"""The README says what exists; the renderer of results shows losses, gaps and provenance."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from cupygemm.cli import main
from cupygemm.errors import FileError
from cupygemm.reports import report

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])

each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)


def row(cupygemm_us: float | None, cublas_us: float | None, **changes: object) -> dict:
    sizes = {"m": 256, "n": 512, "k": 1024, "batch": 1, "layout": "nn", "mode": "rotated"}
    dtypes = {"a_dtype": "float16", "b_dtype": "float16", "out_dtype": "float16"}
    times = {"cupygemm_us": cupygemm_us, "cublas_us": cublas_us, "cublaslt_us": None, "torch_us": None}
    return {**sizes, **dtypes, **times, "epilogue": "none", "scales": "none", "kernel": "own", **changes}


def times(*rows: dict, **provenance: object) -> dict:
    origin = {"device": "NVIDIA H200", "date": "2026-11-30T10:00:00Z", "commit": "0123456789abcdef", **provenance}
    return {"schema": "cupygemm.results/1", "command": "the command", "provenance": origin, "rows": list(rows)}


def cells(markdown: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in markdown.splitlines() if line.startswith("|")]


def test_the_readme_has_the_headline():
    assert "<!-- results:headline -->" in README


@each_document
def test_links_lead_to_files(path):
    text = path.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert [link for link in links if not path.parent.joinpath(link).exists()] == []


def test_make_targets_named_in_the_readme_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)\b", README.replace("GNU make and", "")))
    assert {"demo", "test"} <= named <= targets


def test_commands_named_in_the_readme_exist():
    named = set(re.findall(r"(?:^|`)cupygemm ([a-z]+)\b", README, re.MULTILINE))
    assert {"tune", "report"} <= named <= set(main.commands)


def test_python_in_the_readme_compiles():
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    compile(block, "README.md", "exec")


def test_scores_are_the_comparison_without_its_tables():
    recorded = json.loads((ROOT / "bench" / "results" / "compare.json").read_text(encoding="utf-8"))
    short, whole = report.render_scores(recorded), report.render(recorded)
    assert short.splitlines()[:5] == whole.splitlines()[:5]
    assert set(short.splitlines()) < set(whole.splitlines())
    # Those on our own tables, every strategy of them; the other groups are in the whole.
    ours, *others = recorded["groups"]
    assert len(cells(short)) == 2 + len(ours["strategies"])
    assert all(f"**{group['name']}**" in whole for group in others)
    assert report.render_scores(None) == report.NOTHING


def test_a_loss_is_shown_like_a_win():
    text = report.render(times(row(10.0, 12.0), row(20.0, 15.0, m=64)))
    _, _, win, loss = cells(text)
    assert win == ["256×512×1024", "float16", "nn", "rotated", "10.00", "12.00", "–", "1.200", "–"]
    assert loss == ["64×512×1024", "float16", "nn", "rotated", "20.00", "15.00", "–", "0.750", "–"]
    assert "rotated, 2 rows; against cuBLAS: 1 faster, 1 not, geometric mean of the ratio 0.949" in text
    assert "best cublasLt:" not in text


def test_modes_are_not_averaged_together():
    text = report.render(times(row(10.0, 20.0), row(10.0, 5.0, mode="resident")))
    assert "rotated, 1 row; against cuBLAS: 1 faster, 0 not, geometric mean of the ratio 2.000" in text
    assert "resident, 1 row; against cuBLAS: 0 faster, 1 not, geometric mean of the ratio 0.500" in text


def test_a_row_without_times_is_shown():
    (*_, gap) = cells(report.render(times(row(None, 5.0))))
    assert gap[4:] == ["–", "5.00", "–", "–", "–"]


def test_columns_for_what_is_unusual_appear_when_needed():
    usual = cells(report.render(times(row(1.0, 1.0))))[0]
    unusual = times(row(1.0, 1.0, kernel="cublas", out_dtype="float32", pdl=True, torch_us=2.0, call="matmul"))
    header, _, line = cells(report.render(unusual))
    assert set(header) - set(usual) == {"with", "call", "kernel", "PyTorch, µs"}
    assert line[1] == "float16 → float32"
    assert line[header.index("with")] == "dependent launch"


def test_the_origin_names_device_date_commit_and_command():
    text = report.render(times(row(1.0, 1.0), dirty=True, nvrtc="13.0", driver=None))
    assert text.endswith(
        "NVIDIA H200, 2026-11-30, commit 0123456789 with uncommitted changes, NVRTC 13.0. Command: `the command`."
    )


def test_reports_are_rendered():
    origin = {"provenance": {"device": None}}
    summary = {"shapes": 7, "worst": {"error": 1.23456e-4}}
    text = report.render({"schema": "cupygemm.report/1", "summary": summary, "failures": [{}, {}], **origin})
    assert text.splitlines()[:3] == ["- shapes: 7", "- worst.error: 0.0001235", "- failures: 2"]


@pytest.mark.parametrize("content", ["{", "[]", '{"schema": "cupygemm.results/9"}'])
def test_unknown_files_are_refused_by_name(tmp_path, content):
    (tmp_path / "odd.json").write_text(content)
    with pytest.raises(FileError, match=r"odd\.json"):
        report.read_results(tmp_path)


def test_the_command_checks_and_writes(tmp_path):
    document = tmp_path / "page.md"
    document.write_text("<!-- results:headline -->\n<!-- /results -->\n")
    (tmp_path / "headline.json").write_text(json.dumps(times(row(1.0, 2.0))))
    command = ["report", str(document), "--results", str(tmp_path)]
    stale = CliRunner().invoke(main, [*command, "--check"])
    assert stale.exit_code == 1
    assert stale.stdout == f"{document}: differs from what is recorded\n"
    assert f"run `cupygemm report {document}`" in stale.stderr
    assert CliRunner().invoke(main, command).stdout == f"{document}: written\n"
    assert "256×512×1024" in document.read_text()
    assert CliRunner().invoke(main, [*command, "--check"]).stdout == f"{document}: up to date\n"


def test_outside_a_checkout_the_command_says_where_it_belongs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lost = CliRunner().invoke(main, ["report"])
    assert (lost.exit_code, lost.stdout) == (1, "")
    assert lost.stderr == (
        "Error: bench/results: no such folder: run this at the root of a checkout, or name it with --results\n"
    )
    (tmp_path / "bench" / "results").mkdir(parents=True)
    assert CliRunner().invoke(main, ["report"]).stderr == "Error: README.md: No such file or directory\n"
