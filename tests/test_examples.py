"""Examples of the documents, run: of docs/drop-in.md on a fake GPU, and the strategy of docs/tuning.md on a table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.measuring.verify import activated
from cupygemm.problem import Problem
from tests.fake_gpu import FakeGpu
from tests.fake_kernel import ERF
from tests.fake_products import bundle_of, fresh_gpu, plain

DOCS = Path(__file__).parent.parent / "docs"


def example(heading: str, page: str = "drop-in.md") -> dict[str, Any]:
    """The names that the example under a heading leaves."""
    section = (DOCS / page).read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(compile(code, page, "exec"), names)
    return names


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return fresh_gpu(monkeypatch)


def array(gpu: FakeGpu, *shape: int, dtype: str = "float16") -> Any:
    made = gpu.empty(shape, np.dtype(dtype))
    made[...] = np.random.default_rng(len(shape)).standard_normal(shape)
    return made


def test_the_scores_of_attention_are_one_launch(gpu: FakeGpu) -> None:
    cupygemm.use(bundle_of(Problem(24, 40, 16, 4, layout="nt", epilogue="scaled")))
    # Heads side by side, as a projection leaves them.
    queries, keys = (array(gpu, rows, 4, 16).swapaxes(0, 1) for rows in (24, 40))
    found = example("Stacks")["scores"](queries, keys)
    np.testing.assert_allclose(plain(found), plain(queries) @ plain(keys).swapaxes(1, 2) / 4, rtol=1e-3, atol=1e-3)
    assert (len(gpu.launches), gpu.fallbacks) == (1, [])


def test_two_layers_are_two_launches(gpu: FakeGpu) -> None:
    cupygemm.use(
        bundle_of(Problem(24, 64, 16, epilogue="bias_n+gelu_tanh"), Problem(24, 16, 64, epilogue="bias_n+residual"))
    )
    x, up, down = array(gpu, 24, 16), array(gpu, 16, 64), array(gpu, 64, 16)
    up_bias, down_bias = array(gpu, 64), array(gpu, 16)
    found = example("Epilogues")["feed_forward"](x, up, up_bias, down, down_bias)
    hidden = activated("gelu_tanh", plain(x) @ plain(up) + plain(up_bias), ERF)
    wanted = hidden @ plain(down) + plain(down_bias) + plain(x)
    np.testing.assert_allclose(plain(found), wanted, rtol=2e-3, atol=5e-2)
    assert (len(gpu.launches), gpu.fallbacks) == (2, [])


def test_sums_stay_in_float32(gpu: FakeGpu) -> None:
    cupygemm.use(bundle_of(Problem(24, 40, 16, out_dtype="float32", epilogue="residual")))
    a, b, total = array(gpu, 24, 16), array(gpu, 16, 40), array(gpu, 24, 40, dtype="float32")
    wanted = plain(total) + plain(a) @ plain(b)
    assert example("Epilogues")["accumulate"](total, a, b) is total
    np.testing.assert_allclose(plain(total), wanted, rtol=1e-5, atol=1e-5)
    assert (len(gpu.launches), gpu.fallbacks) == (1, [])


def test_a_strategy_of_ones_own_searches_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    names = example("Try a strategy of your own", "tuning.md")
    assert len(names["result"].trials) == 50
    best = min(trial.measurement.us for trial in names["result"].trials if trial.measurement.us is not None)
    assert names["best"] == best >= names["target"].recorded.optimum_us
    assert re.fullmatch(r"[\d.]+ µs, score -?[\d.]+\n", capsys.readouterr().out)
