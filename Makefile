# demo · test · test-gpu · bench · compare · lint · clean. Each target makes the virtual environment it needs, and makes it anew
# when pyproject.toml or the constraints change. PYTHON picks the interpreter: make test PYTHON=python3.12

PYTHON ?= python3
SHAPE ?= 1024x1024x1024
DEMO := build/demo/tuned.yaml
PIP := python -m pip install --quiet --disable-pip-version-check

# CUDA wheels go into the demo and the tests on a GPU only where there is an NVIDIA GPU; those of CUDA 13 need driver 580 or newer.
CUDA := $(shell \
	driver=$$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null \
	|| test ! -e /dev/nvidia0 || sed -n 's/^NVRM version:.* \([0-9]*\)\.[0-9.]* .*/\1/p' /proc/driver/nvidia/version); \
	driver=$$(echo "$$driver" | head -n 1 | cut -d. -f1); \
	if [ "$$driver" -ge 580 ] 2>/dev/null; then echo cu13; elif [ "$$driver" -gt 0 ] 2>/dev/null; then echo cu12; fi)

comma := ,
EXTRAS_demo := search$(if $(CUDA),$(comma)$(CUDA))
EXTRAS_test := test
EXTRAS_compare := compare
EXTRAS_gpu := test-tools,$(or $(CUDA),cu13)

CONSTRAINTS_demo := -c constraints.txt $(if $(CUDA),-c constraints-$(CUDA).txt)
CONSTRAINTS_test := -c constraints.txt -c constraints-cu13.txt
CONSTRAINTS_compare := -c constraints.txt
CONSTRAINTS_gpu := -c constraints.txt -c constraints-$(or $(CUDA),cu13).txt

# The NVRTCs of CUDA 12 that the tests compile with beside that of CUDA 13, each in an environment of its own: in one,
# cuda.bindings would load the newest that it finds.
NVRTC_12.9 := 12.9.86
NVRTC_12.4 := 12.4.127
NVRTCS := .venv-nvrtc-12.9/ready .venv-nvrtc-12.4/ready

.PHONY: demo test test-gpu bench compare lint clean

demo: .venv-demo/ready
	@mkdir -p $(dir $(DEMO))
	.venv-demo/bin/cupygemm tune $(SHAPE) --dtype float16 --budget 100 --seed 0 --device auto -o $(DEMO)
	.venv-demo/bin/cupygemm bundle show $(DEMO)
	@echo; echo "The bundle is $(DEMO). For the command cupygemm in this shell: . .venv-demo/bin/activate"

# What is missing would skip tests that need it: here it is an error.
test: lint $(NVRTCS)
	CUPYGEMM_REQUIRE_NVRTC=1 CUPYGEMM_REQUIRE_KERNEL_TUNER=1 .venv-test/bin/python -m pytest -n 2 --dist loadgroup -m "not gpu"

lint: .venv-test/ready
	.venv-test/bin/ruff check .
	.venv-test/bin/ruff format --check .
	.venv-test/bin/mypy

test-gpu: .venv-gpu/ready
	CUPYGEMM_REQUIRE_GPU=1 .venv-gpu/bin/python -m pytest -m gpu tests/gpu

bench: .venv-gpu/ready
	PYTHON=.venv-gpu/bin/python bench/run_all.sh build/results

# Hours on few cores; it goes on where it was ended. COMPARE="--tables FOLDER --processes 16" says what and how.
compare: .venv-compare/ready
	.venv-compare/bin/python -m bench.compare $(COMPARE) -o build/compare.json --picture build/compare.svg

clean:
	rm -rf .venv-demo .venv-test .venv-gpu .venv-compare .venv-nvrtc-* build dist cupygemm.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv-nvrtc-%/ready: constraints.txt constraints-cu12.txt
	rm -rf .venv-nvrtc-$*
	$(PYTHON) -m venv .venv-nvrtc-$*
	.venv-nvrtc-$*/bin/$(PIP) -c constraints.txt -c constraints-cu12.txt cuda-bindings platformdirs
	.venv-nvrtc-$*/bin/$(PIP) --no-deps nvidia-cuda-nvrtc-cu12==$(NVRTC_$*)
	@touch $@

.venv-%/ready: pyproject.toml constraints.txt constraints-cu12.txt constraints-cu13.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "cupygemm needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1): make PYTHON=python3.12" >&2; \
	  exit 1; }
	rm -rf .venv-$*
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/$(PIP) $(CONSTRAINTS_$*) setuptools
	.venv-$*/bin/$(PIP) $(CONSTRAINTS_$*) --no-build-isolation -e '.[$(EXTRAS_$*)]'
	@touch $@
