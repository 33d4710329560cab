"""Files of Kernel Tuner that are made up, for the tests of the comparison, and the first of them as a case."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from bench.comparison import cases

PARAMS = {"MWG": [16, 32, 64], "KWG": [32], "SA": [0, 1], "VWM": [1, 2, 4]}
LEAST_MS = 5.0


def result(mwg: int, sa: int, vwm: int, slower: float) -> dict[str, Any]:
    values = {"MWG": mwg, "KWG": 32, "SA": sa, "VWM": vwm}
    if (mwg, vwm) == (16, 4):
        return {**values, "time": "RuntimeFailedConfig"}
    return {**values, "time": LEAST_MS + abs(mwg - 32) / 16 + sa * slower + vwm, "times": [1.0], "compile_time": 3.0}


def cache_file(path: Path, device: str, slower: float = 0.5) -> None:
    """A file of Kernel Tuner as the public ones are: SA without VWM of 2 is left out, a parameter has one value."""
    points = [(m, s, v) for m in PARAMS["MWG"] for s in PARAMS["SA"] for v in PARAMS["VWM"] if (s, v) != (1, 2)]
    document = {
        "device_name": f"NVIDIA {device}",
        "kernel_name": "Xgemm",
        "problem_size": [4096, 4096],
        "tune_params_keys": list(PARAMS),
        "tune_params": PARAMS,
        "cache": {f"{m},32,{s},{v}": result(m, s, v, slower) for m, s, v in points},
    }
    path.write_bytes(gzip.compress(json.dumps(document).encode()))


def two_files(folder: Path) -> Path:
    """Makes the folder, with the files of two devices in it."""
    folder.mkdir()
    cache_file(folder / "one.json.gz", "One")
    cache_file(folder / "two.json.gz", "Two", slower=-0.5)
    return folder


def first_of(folder: Path) -> cases.Case:
    """The first of those two as a case."""
    return next(cases.load(each) for each in cases.sources([folder]) if each.path.name == "one.json.gz")
