# Every chore of this repository, also the ones that CI runs. `make demo` and `make test` set up all they need by themselves.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
OUT := out
# Test processes side by side; the tests of one file stay together, with the servers that they share.
JOBS ?= 2
# Of tests that mostly wait for other processes one more at a time keeps the machine busy.
WAITING_JOBS ?= $(if $(filter 0,$(JOBS)),0,$(shell expr $(JOBS) + 1))

# Which notebooks are compared: all, but for a sample in the gate (tests/golden/golden_total.py).
GOLDEN ?= not gpu
# A comparison that takes so long shows where every thread is.
STANDS_STILL_S := 150

# Where slow tests are; each process would import all the others for nothing (tests/test_markers.py).
SLOW_FILES = $(shell grep -rl 'mark\.slow' tests --include='test_*.py' --exclude-dir=golden | sort)

TOOLS_STAMP := $(VENV)/.set-up-tools
SETUP_STAMP := $(VENV)/.set-up
BUILT_STAMP := $(VENV)/.built
GOLDEN_STAMP := $(VENV)/.set-up-golden
BROWSER_STAMP := $(VENV)/.set-up-browser
LAB_STAMP := $(VENV)/.set-up-lab
# Of another JupyterLab, such as 4.4, with the Notebook of its time: make browser LAB=4.4
LAB ?=
OTHER_LAB := $(VENV)/lab-$(LAB)
# Screenshots of the browser tests that the pages show.
PICTURES := lab-ready lab-queued lab-outputs lab-details notebook-running
LAB_MODULES := labextension/node_modules/.package-lock.json
LAB_SOURCES := $(wildcard labextension/*.json labextension/*.toml labextension/looseleaf_lab/*.py labextension/schema/* \
	labextension/style/* labextension/src/*.ts labextension/src/tests/*.ts)
NATIVE_SOURCES := $(wildcard csrc/dirty_tracker/*.h csrc/dirty_tracker/*.cpp csrc/dirty_tracker/*.cu csrc/third_party/*/*) \
	$(wildcard csrc/checkpoint/*.h csrc/checkpoint/*.cpp csrc/worker/*.c)
PROTOS := $(shell find proto -name '*.proto')

NATIVE_TEST := build/native-test/dirty_tracker_test
CHECKPOINT_TEST := build/native-test/checkpoint_test
CHECKPOINT_TEST_SOURCES := csrc/checkpoint/tests/checkpoint_test.cpp csrc/checkpoint/dominators.cpp \
	csrc/checkpoint/canonical.cpp
SANITIZED := $(CXX) -std=c++17 -O1 -g -Wall -Wextra -fsanitize=address,undefined -fno-sanitize-recover=all
NATIVE_TEST_SOURCES := $(wildcard csrc/dirty_tracker/tests/*.cpp) \
	$(filter-out %_bindings.cpp %/cuda_stream.cpp, $(wildcard csrc/dirty_tracker/*.cpp))

.DEFAULT_GOAL := help
.PHONY: help setup proto native demo test native-test test-packages lint type golden golden-setup lab browser \
	browser-setup bench docs docs-example docs-pictures slow soak gpu-check dist clean

help:  ## show this list
	@awk -F ':.*##' '/^[a-z-]+:.*##/ { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(SETUP_STAMP) $(BUILT_STAMP)  ## make .venv with everything installed and built (PYTHON=python3.12 picks another Python)

# What compiles and generates, before all else: the native parts are built while the other packages are installed (make -j).
$(TOOLS_STAMP): constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "LooseLeaf needs Python 3.11 to 3.13; $(PYTHON) is $$($(PYTHON) -V). Try: make setup PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt setuptools wheel pybind11 grpcio-tools
	@touch $@

# torch comes first and with its exact version: then pip takes the CPU build where one is offered, and nothing replaces it.
$(SETUP_STAMP): $(TOOLS_STAMP) pyproject.toml setup.py
	$(BIN)/python -m pip install -q -c constraints.txt torch==2.13.0
	LOOSELEAF_NATIVE=0 $(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e ".[dev,examples]"
	@touch $@

$(BUILT_STAMP): $(TOOLS_STAMP) pyproject.toml setup.py $(NATIVE_SOURCES) $(PROTOS)
	$(BIN)/python setup.py -q build_proto --inplace build_ext --inplace
	@touch $@

proto: $(SETUP_STAMP)  ## generate the protobuf and gRPC code again
	$(BIN)/python setup.py -q build_proto --inplace

native: $(SETUP_STAMP)  ## compile the native extension again
	$(BIN)/python setup.py -q build_ext --inplace --force

demo: setup  ## run the example notebook with virtual GPUs, at the pace of a person who thinks 3 s a cell
	@mkdir -p $(OUT)
	$(BIN)/looseleaf run examples/digits_cnn.ipynb -o $(OUT)/digits_cnn.ipynb --think 3

test: setup  ## run the tests that need no GPU and little time
	$(PYTEST) -m "not slow and not gpu and not browser" -n $(JOBS) --dist loadfile

native-test: $(NATIVE_TEST) $(CHECKPOINT_TEST)  ## run the C++ tests under the address and undefined-behaviour sanitizers
	$(NATIVE_TEST)
	$(CHECKPOINT_TEST)

$(NATIVE_TEST): $(NATIVE_TEST_SOURCES) $(wildcard csrc/dirty_tracker/*.h csrc/dirty_tracker/tests/*.h)
	@mkdir -p $(@D)
	$(SANITIZED) -Icsrc/dirty_tracker $(NATIVE_TEST_SOURCES) -o $@ -pthread

$(CHECKPOINT_TEST): $(CHECKPOINT_TEST_SOURCES) $(wildcard csrc/checkpoint/*.h)
	@mkdir -p $(@D)
	$(SANITIZED) -Icsrc/checkpoint $(CHECKPOINT_TEST_SOURCES) -o $@

lint: setup  ## check style, import contracts and, where buf is installed, the protos
	$(BIN)/ruff check
	$(BIN)/lint-imports
	@if command -v buf >/dev/null; then buf lint proto; else echo "buf is not installed: the protos were not linted"; fi

# All that any of the tests needs, before the first of them runs: what is installed meanwhile is news to a cluster.
test-packages: setup
	$(MAKE) golden-setup
	$(MAKE) browser-setup

type: setup  ## check types (mypy --strict)
	$(BIN)/mypy

# Packages of the notebooks only; the project itself is installed already.
$(GOLDEN_STAMP): $(SETUP_STAMP) pyproject.toml constraints.txt
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["golden"], sep="\n")' > $@.txt
	$(BIN)/python -m pip install -q -c constraints.txt -r $@.txt
	@touch $@

golden: golden-setup  ## compare notebooks cell by cell with an ordinary kernel; writes out/golden.json
	$(PYTEST) tests/golden -m "$(GOLDEN)" -n $(WAITING_JOBS) --dist worksteal -o faulthandler_timeout=$(STANDS_STILL_S)

golden-setup: setup $(GOLDEN_STAMP)

# Packages of the browser test; JupyterLab's builder among them.
$(BROWSER_STAMP): $(SETUP_STAMP) pyproject.toml constraints.txt
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["browser"], sep="\n")' > $@.txt
	$(BIN)/python -m pip install -q -c constraints.txt -r $@.txt
	@touch $@

$(LAB_MODULES): labextension/package-lock.json
	cd labextension && npm ci --no-audit --no-fund

$(LAB_STAMP): $(BROWSER_STAMP) $(LAB_MODULES) $(LAB_SOURCES)
	cd labextension && npm test && PATH="$(abspath $(BIN)):$$PATH" npm run build
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation --force-reinstall ./labextension
	@touch $@

lab: setup  ## build the JupyterLab extension and install it into .venv, with JupyterLab and Notebook (needs node)
	@command -v npm >/dev/null || { echo "lab needs node >= 20.19 with npm; none is here."; exit 1; }
	$(MAKE) $(LAB_STAMP)

# It has the extension as people get it, as a wheel, and nothing else of ours.
$(VENV)/lab-%/.set-up: $(LAB_STAMP)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install -q "jupyterlab==$*.*" "notebook>=7" jupyterlab_widgets
	rm -rf $(@D)/wheel && $(BIN)/python -m pip wheel -q --no-deps --no-build-isolation -w $(@D)/wheel ./labextension
	$(@D)/bin/python -m pip install -q --no-deps --force-reinstall $(@D)/wheel/*.whl
	@touch $@

# Where node or Chromium can't be had the tests skip, and say so.
browser-setup: setup $(BROWSER_STAMP)
	@if command -v npm >/dev/null && $(MAKE) $(LAB_MODULES); then $(MAKE) $(LAB_STAMP); \
		else echo "npm or its packages can't be had: the extension is not built"; fi
	@command -v chromium >/dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || \
		{ apt-get update -q && apt-get install -qy --no-install-recommends chromium fonts-dejavu-core; } >/dev/null || \
		echo "Chromium could not be installed"

browser: browser-setup  ## drive JupyterLab and Notebook 7 in Chromium, LAB=4.4 others; screenshots go to out/browser
	$(if $(LAB),$(MAKE) $(OTHER_LAB)/.set-up)
	$(if $(LAB),LOOSELEAF_LAB_PYTHON=$(abspath $(OTHER_LAB))/bin/python) $(PYTEST) tests/browser -m browser -rs

bench: setup  ## measure: pytest-benchmark over bench/, each beside its reference (BENCH_ARGS adds options)
	@mkdir -p $(OUT)
	$(PYTEST) bench -m "not gpu" --benchmark-quiet --benchmark-json=$(OUT)/bench.json $(BENCH_ARGS)

slow: setup  ## run the slow tests that the gate runs too
	$(PYTEST) $(SLOW_FILES) -m "slow and not soak and not gpu" -n $(WAITING_JOBS) --dist loadfile

soak: golden-setup  ## run all slow tests, also those that take minutes each, and the golden ones that the gate leaves out
	@status=0; $(PYTEST) -m "slow and not gpu" -k "not golden" || status=1; \
		$(MAKE) golden GOLDEN=soak || status=1; exit $$status

gpu-check: setup  ## measure and test what needs a real GPU, in 8 minutes; writes out/gpu-check.json
	@nvidia-smi -L 2>/dev/null | grep -q GPU || { echo "gpu-check needs an NVIDIA GPU with its driver; none is here."; exit 1; }
	$(BIN)/python bench/gpu_check.py

docs: setup  ## build the pages into out/docs; a warning of Sphinx is an error
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs $(OUT)/docs

# It is shown with its outputs, which are committed: the pages are built without a cluster.
docs-example: setup  ## run docs/example.ipynb again, on a virtual GPU
	@mkdir -p $(OUT)
	$(BIN)/looseleaf run docs/example.ipynb -o $(OUT)/example.ipynb --device emulated --think 2
	cp $(OUT)/example.ipynb docs/example.ipynb

docs-pictures: browser  ## drive the browser and take its screenshots into docs/images
	@mkdir -p docs/images
	cp $(PICTURES:%=$(OUT)/browser/%.png) docs/images/

dist: setup  ## build the sdist and the wheel into dist/
	$(BIN)/python -m build --no-isolation

clean:  ## remove what was built and written, but not .venv
	rm -rf labextension/lib labextension/dist labextension/looseleaf_lab/labextension
	rm -rf build dist $(OUT) *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .import_linter_cache
	rm -f looseleaf/v1/*_pb2*.py looseleaf/v1/*_pb2*.pyi looseleaf/*/*.so $(BUILT_STAMP)
	find looseleaf services tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
