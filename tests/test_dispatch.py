"""`matmul`, `explain` and `use` on a fake GPU: which bundle decides, and how often a plan is made."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cupygemm
from cupygemm.choosing import dispatch
from cupygemm.choosing.defaults import default_config
from cupygemm.choosing.dispatch import Dispatcher
from cupygemm.config import KernelConfig
from cupygemm.device import H200, DeviceSpec
from cupygemm.errors import BundleError, CompileError, ConfigError
from cupygemm.kernels import compiler
from cupygemm.problem import Problem
from cupygemm.runtime import api
from cupygemm.views.reading import unposed_reason
from tests.fake_gpu import FakeGpu
from tests.fake_products import LARGE, PROBLEM, SMALL, bundle_of, fresh_gpu, operands, plain, right

BLACKWELL = DeviceSpec("NVIDIA B200", (10, 0), 148, 232448, 130 << 20, 1965)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return fresh_gpu(monkeypatch)


def test_explain_launches_nothing_and_says_what_would_run(gpu: FakeGpu) -> None:
    cupygemm.use(bundle_of(PROBLEM))
    a, b = operands(gpu)
    choice = cupygemm.explain(a, b)
    assert (choice.kernel, choice.problem, choice.config) == ("own", PROBLEM, SMALL)
    assert choice.bundle == "the bundle given"
    assert str(choice).splitlines() == [
        "24x40x16 float16 nn: own kernel",
        "  because the bundle given has a config for it",
        "  layout nn: A stored row-major, B stored row-major",
        f"  {' '.join(f'{name}={value}' for name, value in SMALL.to_dict().items())}",
        "  measured: 1.00 µs a launch",
        "  found by test, 1 evaluation",
    ]
    assert (len(gpu.compiled), gpu.launches, gpu.fallbacks) == (1, [], [])
    nothing = cupygemm.explain(b.T, a.T)
    assert (nothing.kernel, nothing.reason) == ("cublas", "no bundle in force has a config for it")
    assert nothing.problem == Problem(40, 24, 16, layout="tt")
    assert "layout tt: A stored transposed, B stored transposed" in str(nothing)
    assert "cuBLAS" in str(nothing)
    assert "the operands: cupy.matmul" in str(cupygemm.explain(a, a))


def test_the_newest_bundle_wins_and_leaves_again(gpu: FakeGpu) -> None:
    a, b = operands(gpu)
    outer = cupygemm.use(bundle_of(PROBLEM))
    with cupygemm.use(bundle_of(PROBLEM, config=LARGE)):
        assert cupygemm.explain(a, b).config == LARGE
        with pytest.raises(ZeroDivisionError), cupygemm.use(bundle_of(PROBLEM, config=LARGE.swapped(group=2))):
            raise ZeroDivisionError
        assert cupygemm.explain(a, b).config == LARGE
    assert cupygemm.explain(a, b).config == SMALL
    outer.undo()
    outer.undo()
    assert cupygemm.explain(a, b).kernel == "cublas"


def test_a_bundle_may_leave_before_a_newer_one(gpu: FakeGpu) -> None:
    a, b = operands(gpu)
    dispatcher = Dispatcher()
    older = dispatcher.push(bundle_of(PROBLEM), "older")
    newer = dispatcher.push(bundle_of(PROBLEM, config=LARGE), "newer")
    dispatcher.remove(older)
    assert dispatcher.choose(a, b)[0].bundle == "newer"
    dispatcher.remove(newer)
    choice, plan = dispatcher.choose(a, b)
    assert (choice.kernel, plan) == ("cublas", None)


def test_one_bundle_given_twice_is_taken_out_once(gpu: FakeGpu) -> None:
    a, b = operands(gpu)
    bundle = bundle_of(PROBLEM)
    with cupygemm.use(bundle):
        with cupygemm.use(bundle):
            pass
        assert cupygemm.explain(a, b).kernel == "own"


def test_paths_name_their_bundle(gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = operands(gpu)
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    bundle_of(PROBLEM).save(first)
    bundle_of(PROBLEM, config=LARGE).save(second)
    monkeypatch.setenv("CUPYGEMM_BUNDLE", str(first))
    assert cupygemm.explain(a, b).bundle == str(first)
    with cupygemm.use(str(second)):
        choice = cupygemm.explain(a, b)
        assert (choice.bundle, choice.config) == (str(second), LARGE)
        assert str(second) in choice.reason
    assert cupygemm.explain(a, b).bundle == str(first)


def test_a_bundle_that_cannot_be_read_is_an_error(
    gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = operands(gpu)
    path = tmp_path / "tuned.yaml"
    with pytest.raises(BundleError, match=r"tuned\.yaml: No such file"):
        cupygemm.use(path)
    assert cupygemm.explain(a, b).kernel == "cublas"
    monkeypatch.setattr(api, "_dispatcher", Dispatcher())
    monkeypatch.setenv("CUPYGEMM_BUNDLE", str(path))
    with pytest.raises(BundleError, match=r"tuned\.yaml: No such file .*\(CUPYGEMM_BUNDLE names it: name another"):
        cupygemm.matmul(a, b)
    path.write_text("schema: none\n")
    monkeypatch.setattr(api, "_dispatcher", Dispatcher())
    monkeypatch.setenv("CUPYGEMM_BUNDLE", str(path))
    for call in (cupygemm.explain, cupygemm.matmul, cupygemm.explain):
        with pytest.raises(BundleError, match=r"tuned\.yaml: schema is 'none'.*CUPYGEMM_BUNDLE"):
            call(a, b)
    # What no bundle could have a config for does not ask for one.
    assert cupygemm.explain(a.astype(np.float32), b.astype(np.float32)).kernel == "cublas"
    bundle_of(PROBLEM).save(path)
    assert cupygemm.explain(a, b).kernel == "own"


def test_an_entry_from_elsewhere_is_passed_over_with_one_warning(
    gpu: FakeGpu, caplog: pytest.LogCaptureFixture
) -> None:
    words = ("another kind of GPU", "10.0, not 9.0")
    a, b = operands(gpu)
    cupygemm.use(bundle_of(PROBLEM, config=LARGE, device=replace(H200, compute_capability=(10, 0))))
    for _ in range(3):
        choice = cupygemm.explain(a, b)
        np.testing.assert_array_equal(plain(cupygemm.matmul(a, b)), right(a, b))
    assert (choice.kernel, len(gpu.fallbacks), gpu.compiled) == ("cublas", 3, [])
    assert all(word in choice.reason for word in words)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.name.startswith("cupygemm")
    assert all(word in record.getMessage() for word in words)
    assert str(PROBLEM) in record.getMessage()
    # Other problems of that bundle are none of this product's concern.
    assert cupygemm.explain(b.T, a.T).reason == "no bundle in force has a config for it"
    assert len(caplog.records) == 1


H100 = replace(H200, name="NVIDIA H100 PCIe", sm_count=114)


@pytest.mark.parametrize("elsewhere", [H100, replace(H200, name="NVIDIA H200 MIG 3g.71gb", sm_count=60)])
def test_an_entry_of_another_hopper_gpu_is_used_with_one_warning(
    gpu: FakeGpu, caplog: pytest.LogCaptureFixture, elsewhere: DeviceSpec
) -> None:
    gpu.specs[0] = elsewhere
    cupygemm.use(bundle_of(PROBLEM, replace(PROBLEM, m=8)))
    a, b = operands(gpu)
    for rows in (24, 8, 24):
        np.testing.assert_array_equal(plain(cupygemm.matmul(a[:rows], b)), right(a[:rows], b))
    assert (len(gpu.launches), gpu.fallbacks) == (3, [])
    said = (f"{elsewhere.name} ({elsewhere.sm_count} SMs)", "NVIDIA H200 (132 SMs)", "cupygemm tune")
    choice = cupygemm.explain(a, b)
    assert (choice.kernel, choice.config) == ("own", SMALL)
    assert all(words in choice.reason for words in said)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert all(words in record.getMessage() for words in ("the bundle given was measured on", *said))


def test_an_entry_of_the_gpu_at_hand_comes_before_one_of_another(
    gpu: FakeGpu, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cupygemm.use(bundle_of(PROBLEM))
    cupygemm.use(bundle_of(PROBLEM, config=LARGE, device=H100))
    a, b = operands(gpu)
    assert cupygemm.explain(a, b).config == SMALL
    assert caplog.records == []
    gpu.refused[SMALL] = CompileError("NVRTC refused the kernel: no", "log")
    monkeypatch.setattr(api, "_dispatcher", Dispatcher())
    cupygemm.use(bundle_of(PROBLEM))
    cupygemm.use(bundle_of(PROBLEM, config=LARGE, device=H100))
    assert cupygemm.explain(a, b).config == LARGE


def test_an_entry_of_another_hopper_gpu_that_is_not_legal_here_is_passed_over(
    gpu: FakeGpu, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.specs[0] = replace(H100, shared_bytes=64 * 1024)
    cupygemm.use(bundle_of(PROBLEM, config=LARGE))
    choice = cupygemm.explain(*operands(gpu))
    assert choice.kernel == "cublas"
    assert "bytes of shared memory: NVIDIA H100 PCIe has 65536" in choice.reason
    assert gpu.compiled == []
    assert len(caplog.records) == 1


def test_what_would_run_elsewhere_is_said_without_compiling(gpu: FakeGpu) -> None:
    dispatcher = Dispatcher({"tuned.yaml": bundle_of(PROBLEM, config=LARGE)})
    choice = dispatcher.choose_on(PROBLEM, H100)
    assert (choice.kernel, choice.config, choice.bundle) == ("own", LARGE, "tuned.yaml")
    assert choice.entry is not None
    assert dispatcher.choose_on(PROBLEM, BLACKWELL).reason == "NVIDIA B200 is not a Hopper GPU"
    small = dispatcher.choose_on(PROBLEM, replace(H200, shared_bytes=1024))
    assert (small.kernel, "shared memory" in small.reason) == ("cublas", True)
    assert dispatcher.choose_on(Problem(8, 8, 8), H200).reason == "no bundle in force has a config for it"
    huge = Problem(2**31, 8, 8)
    assert "are built" in Dispatcher({"x": bundle_of(huge)}).choose_on(huge, H200).reason
    assert gpu.compiled == []


@pytest.mark.parametrize(
    ("batch", "borrows"),
    # 128 tiles of 64x128 are one wave; of four matrices, 256 tiles of 128x128 by turns are faster (docs/variants.md).
    [(2, True), (4, False), (8, False), (32, False)],
)
def test_a_stack_borrows_what_is_expected_to_be_as_fast_as_its_default(batch: int, borrows: bool) -> None:
    few = KernelConfig(64, 128, 64, 8, 1, False, 1, 1, True, 4, 40, 1, 1, l2_promotion=128)
    alone = Problem(1024, 1024, 1024)
    dispatcher = Dispatcher({"mine": bundle_of(alone, config=few)})
    problem = replace(alone, batch=batch)
    choice = dispatcher.choose_on(problem, H200)
    assert choice.kernel == "own"
    if borrows:
        assert (choice.config, choice.bundle) == (few, "mine")
        assert choice.reason == f"mine has a config for {alone}"
    else:
        assert (choice.config, choice.bundle) == (default_config(problem, H200), None)
        assert choice.reason == (
            "no bundle in force has a config for it, and this is the one for stacks of its size, "
            f"which is expected to be faster than what mine has for {alone}"
        )


def test_what_was_measured_for_a_stack_is_borrowed_whatever_is_expected() -> None:
    few = KernelConfig(64, 128, 64, 8, 1, False, 1, 1, True, 4, 40, 1, 1, l2_promotion=128)
    stack = Problem(1024, 1024, 1024, 32)
    dispatcher = Dispatcher({"mine": bundle_of(stack, config=few)})
    for problem in (replace(stack, epilogue="relu"), replace(stack, out_dtype="float32")):
        choice = dispatcher.choose_on(problem, H200)
        assert (choice.config, choice.reason) == (few, f"mine has a config for {stack}")


def test_what_is_not_borrowed_is_not_remarked_upon_until_it_is_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    few = KernelConfig(64, 128, 64, 8, 1, False, 1, 1, True, 4, 40, 1, 1, l2_promotion=128)
    bundle = bundle_of(Problem(1024, 1024, 1024), config=few)
    problem = Problem(1024, 1024, 1024, 8)
    elsewhere = replace(H200, name="NVIDIA H100 SXM")
    assert Dispatcher({"mine": bundle}).choose_on(problem, elsewhere).bundle is None
    assert caplog.records == []
    # Where the default cannot run, the other one does.
    refused = default_config(problem, elsewhere)
    refuse = dispatch._refuse_illegal

    def refusing(problem: Problem, config: KernelConfig, device: DeviceSpec) -> None:
        if config == refused:
            raise ConfigError("not here")
        refuse(problem, config, device)

    monkeypatch.setattr(dispatch, "_refuse_illegal", refusing)
    choice = Dispatcher({"mine": bundle}).choose_on(problem, elsewhere)
    assert (choice.config, choice.bundle) == (few, "mine")
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_results_that_no_kernel_gives_are_not_asked_for() -> None:
    for dtype in ("float16", "float32", "bfloat16"):
        assert unposed_reason(Problem(64, 64, 64, out_dtype=dtype)) is None
    assert "own kernels give" in str(unposed_reason(Problem(64, 64, 64, out_dtype="float8_e5m2")))


def test_what_is_passed_over_leaves_the_next_bundle_its_turn(gpu: FakeGpu, caplog: pytest.LogCaptureFixture) -> None:
    a, b = operands(gpu)
    cupygemm.use(bundle_of(PROBLEM))
    with cupygemm.use(bundle_of(PROBLEM, config=LARGE.swapped(stages=99))):
        assert cupygemm.explain(a, b).config == SMALL
        assert len(caplog.records) == 1


def test_another_make_of_gpu_is_cublas(gpu: FakeGpu) -> None:
    gpu.specs[0] = BLACKWELL
    cupygemm.use(bundle_of(PROBLEM, device=BLACKWELL))
    a, b = operands(gpu)
    choice = cupygemm.explain(a, b)
    assert (choice.kernel, choice.problem) == ("cublas", PROBLEM)
    assert choice.reason == "NVIDIA B200 is not a Hopper GPU"
    assert gpu.compiled == []


# Plans are made once


def test_a_plan_is_made_once_and_kept(gpu: FakeGpu) -> None:
    cupygemm.use(bundle_of(PROBLEM, replace(PROBLEM, m=8)))
    dispatcher = api.dispatcher()
    a, b = operands(gpu)
    plan = dispatcher.choose(a, b)[1]
    assert dispatcher.choose(a, b)[1] is plan
    assert dispatcher.choose(a, b, gpu.empty((24, 40), np.float16))[1] is plan
    # Sizes are run-time arguments: another problem of the same spec and config needs another plan, not another kernel.
    other = dispatcher.choose(a[:8], b)[1]
    assert other is not plan
    assert other.kernel is plan.kernel
    assert len(gpu.compiled) == 1


def test_threads_make_one_plan_once(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    cupygemm.use(bundle_of(PROBLEM))
    a, b = operands(gpu)
    start = threading.Barrier(8)
    plans: list[Any] = []

    def compile_slowly(*pair: Any) -> Any:
        time.sleep(0.05)
        return gpu.compile(*pair)

    def work() -> None:
        start.wait()
        plans.append(api.dispatcher().choose(a, b)[1])

    monkeypatch.setattr(compiler, "compile_kernel", compile_slowly)
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(gpu.compiled) == 1
    assert len(plans) == 8
    assert len(set(map(id, plans))) == 1
    assert plans[0] is not None
