# Everything that is done to this project from outside it. `make help` lists what there is.

# The Python to build .venv with (3.11 or newer), the ranks of the demo, and the MPI it runs on:
# "auto" is the mpich wheel in .venv, "system" the machine's own.
PYTHON ?= python3
RANKS ?= 2
MPI ?= auto

# Passed to each `pip install`. PyPI's torch for x86-64 Linux brings several GB of CUDA libraries. On a machine
# without a GPU, take PyTorch's CPU build instead by naming its wheel index (the address is on PyTorch's
# "Get Started" page):  make PIP_INSTALL_FLAGS="--extra-index-url ADDRESS"
PIP_INSTALL_FLAGS ?=

VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers

# The real graph among the benchmarks', if it is there.
MGG_DATA ?= ../shared/data
CNR := $(MGG_DATA)/cnr_2000/cnr_2000.npz

# What a change of makes it necessary to install again, or only to compile again.
METADATA := setup.cfg pyproject.toml constraints.txt .ci/setup
SOURCES := CMakeLists.txt $(shell find cuda -type f)
# An OpenSHMEM that came after the last compilation gets its extension.
ifneq ($(shell command -v oshc++),)
ifeq ($(wildcard mgg_hpc/_shmem*.so),)
SOURCES += openshmem-came
endif
endif

# Compiled again where CMAKE_ARGS says something else than the last time.
ifneq ($(strip $(CMAKE_ARGS)),)
ifneq ($(strip $(CMAKE_ARGS)),$(strip $(file <$(VENV)/.arguments)))
SOURCES += other-arguments
endif
ifneq ($(strip $(CMAKE_ARGS)),$(strip $(file <$(VENV)/.cuda.arguments)))
CUDA_ARGUMENTS := other-arguments
endif
endif

export PIP_INSTALL_FLAGS
# Byte code is kept, whatever the machine is set to: tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: openshmem-came other-arguments help setup wheel cuda demo test test-fast test-long torture coverage mutants gpu-contact gpu-test gpu-bench lint format docs accuracy bench bench-peers clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

setup: $(VENV)/.complete ## build .venv: the package, its native extensions, an MPI

$(VENV)/.complete: $(METADATA) $(SOURCES)
	@.ci/setup "$(PYTHON)" $(VENV) $(if $(filter $(METADATA),$?),install,compile)

$(VENV)/.tests: $(METADATA) | $(VENV)/.complete
	@.ci/setup "$(PYTHON)" $(VENV) tests

wheel: setup ## build a wheel in dist/, for CPUs of every kind
	@.ci/setup "$(PYTHON)" $(VENV) wheel

cuda: $(VENV)/.cuda ## add the GPU kernels (mgg_hpc/_cuda); no GPU is needed to build them

$(VENV)/.cuda: $(VENV)/.complete $(CUDA_ARGUMENTS)
	@.ci/setup "$(PYTHON)" $(VENV) cuda

inputs/digits.h5: | setup
	@$(BIN)/mgg import digits -o $@

demo: setup inputs/digits.h5 ## train a GCN on handwritten digits over 2 ranks (RANKS=4, MPI=system)
	@$(BIN)/mgg launch -n $(RANKS) --mpi $(MPI) train inputs/digits.toml

# Tests are divided into tiers (tests/tiers.py). Those of one process run two at a time, those on MPI ranks after them.
# What they load is compiled before (tests/builds.py).
PYTEST := OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q
UNITS := $(PYTEST) -n 2 --dist worksteal
# $(call over,LAUNCHER,RANKS): a rank that fails ends the others, which may wait for it (-m mpi4py, -x).
over = OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 MGG_TEST_RANKS=$(2) $(1) $(2) $(BIN)/python -m mpi4py -m pytest -q -x --with-mpi
ranks = $(call over,$(BIN)/mpiexec -n,$(1))
# Tests that measure time or take the whole machine.
ALONE := tests/benchmarks tests/shmem tests/slurm tests/torture
SEED := $(or $(MGG_TEST_SEED),$(shell shuf -i 0-999999 -n 1))
seeded = export MGG_TEST_SEED=$(SEED); echo "random numbers: MGG_TEST_SEED=$(SEED)"

test-fast: $(VENV)/.tests ## what to run after every edit: a minute
	@$(BIN)/ruff check -q
	@$(UNITS) --tier fast && $(call ranks,2) --tier fast tests/mpi

test: $(VENV)/.tests ## the test suite: 5 min on 2 cores
	@$(BIN)/python tests/builds.py test
	@failed=0; $(UNITS) || failed=1; $(call ranks,3) tests/mpi || failed=1; exit $$failed

test-long: $(VENV)/.tests cuda wheel ## the rest: OpenSHMEM, Slurm, sanitizers, planted faults, other random numbers: 30 min
	@$(seeded); failed=0; $(BIN)/python tests/builds.py long || failed=1; \
	$(UNITS) --tier long $(ALONE:%=--ignore=%) tests || failed=1; \
	$(PYTEST) --tier long $(ALONE) || failed=1; \
	$(call ranks,3) --tier long tests/mpi || failed=1; \
	if command -v oshc++ >/dev/null; then \
	  $(call over,$(BIN)/python tests/shmem/launch.py,3) --tier all tests/shmem || failed=1; \
	fi; exit $$failed

torture: $(VENV)/.tests ## kill, stop and damage runs some 4,000 times, and keep what was found in docs/reliability.md: an hour
	@$(seeded); export MGG_TEST_DRAW=all MGG_TORTURE_REPORT=build/tests/torture.md; \
	$(BIN)/python tests/builds.py torture; mkdir -p build/tests && rm -f $$MGG_TORTURE_REPORT; failed=0; \
	$(PYTEST) --tier torture --timeout 7200 || failed=1; \
	$(call ranks,4) tests/mpi/training/test_resume.py || failed=1; \
	PYTHONPATH=tests:benchmarks $(BIN)/python tests/torture/report.py $$MGG_TORTURE_REPORT; exit $$failed

# Every process that a test starts is measured (patch in pyproject.toml), but not one that is killed. A limit on the size
# of files would break the records.
coverage: $(VENV)/.tests ## share of the lines of mgg_hpc that `make test` runs: build/coverage
	@$(BIN)/python tests/builds.py test; export COVERAGE_FILE=$(CURDIR)/build/coverage/data; rm -rf build/coverage; \
	mkdir -p build/coverage; $(subst -m pytest,-m coverage run -m pytest,$(UNITS)) -k "not limit_on_file_sizes"; \
	$(subst -m mpi4py,-m coverage run -m mpi4py,$(call ranks,3)) tests/mpi; \
	$(BIN)/coverage combine -q; $(BIN)/coverage report --skip-covered --sort=miss | tail -40

# cosmic-ray is the extra `mutants`, which nothing else needs.
mutants: $(VENV)/.tests ## share of random faults that the tests of their folder find, after hours (MUTANTS=300 SEED=1)
	@$(BIN)/python -c "import cosmic_ray" 2>/dev/null || \
	  $(BIN)/python -m pip install -qq --disable-pip-version-check $(PIP_INSTALL_FLAGS) "cosmic-ray>=8.4"
	@nice $(BIN)/python -P tests/mutants.py --mutants $(or $(MUTANTS),300) \
	  --seed $(if $(findstring command,$(origin SEED)),$(SEED),1)

# On a machine with a GPU and no network: neither .venv nor set-up. WHEELS is a folder with what PYTHON lacks. Tests run
# in a process that another one replaces where it hangs or crashes (-n 1); what there is no time for is left to --lf.
# GPU_DEVICE=shim: over the shim, by a PYTHON that has what tests need (.venv/bin/python), with nothing to prepare.
WHEELS ?=
TESTS ?=
PARTS ?=
GPU_DEVICE ?= cuda
GPU_BUILD := build/gpu
GPU_RESULTS ?= $(GPU_BUILD)/results
GPU_TESTS := $(patsubst %,tests/gpu/test_%.py,smoke table ranks sanitizers)
GPU_UNTIL = until=$$(($$(date +%s) + 540))
GPU_PYTHON = env $$(find $(GPU_BUILD)/mpi -name libmpi.so.12 2>/dev/null | sed "s/^/MPI4PY_LIBMPI=/;q") \
	MGG_DATA="$(MGG_DATA)" MGG_BENCH_GRAPHS="$(abspath $(GPU_BUILD))/graphs" MGG_GPU_FAULTY="$(GPU_BUILD)/faulty/_cuda.so" \
	PYTHONPATH="$(abspath $(GPU_BUILD))/site:$(CURDIR):$(PYTHONPATH)" $(PYTHON)
# The modules of a GPU are for this one alone.
GPU_PREPARE = mkdir -p $(GPU_RESULTS) && $(if $(filter shim,$(GPU_DEVICE)),\
	$(PYTHON) tests/builds.py shim,\
	rm -f $(VENV)/.cuda && $(PYTHON) tests/gpu/prepare.py $(GPU_BUILD) "$(WHEELS)")
GPU_PYTEST = $(GPU_PYTHON) -m pytest -n 1 -m gpu --device $(GPU_DEVICE) --timeout 0 -v --until $$until \
	--junitxml $(GPU_RESULTS)/$(@:gpu-%=%)-$$(date +%s).xml $(1) | tee -a $(GPU_RESULTS)/$(@:gpu-%=%).log | grep -v PASSED
GPU_BENCH = $(GPU_PYTHON) tests/gpu/bench.py --device $(GPU_DEVICE) --results $(GPU_RESULTS) --until $$until

gpu-contact gpu-test: SHELL := /bin/bash
gpu-contact gpu-test: .SHELLFLAGS := -o pipefail -c

gpu-contact: ## ten minutes on this machine's GPU: build, and the tests that say most (PYTHON, WHEELS=folder)
	@$(GPU_UNTIL); $(GPU_PREPARE) && { failed=0; \
	$(call GPU_PYTEST,tests/gpu/test_smoke.py) || failed=1; $(GPU_BENCH) aggregate-one || failed=1; \
	$(call GPU_PYTEST,tests/gpu/test_ranks.py -k "processes and 2-] or training and 1-]") || failed=1; exit $$failed; }

gpu-test: ## the proof on this machine's GPU, by PYTHON (WHEELS=folder, TESTS=--lf for what has not passed)
	@$(GPU_UNTIL); $(GPU_PREPARE) && $(if $(TESTS),,rm -f $(GPU_RESULTS)/*.xml $(GPU_RESULTS)/test.log &&) \
	$(call GPU_PYTEST,$(if $(filter tests/%,$(TESTS)),,$(GPU_TESTS)) $(TESTS))

gpu-bench: ## what that GPU reaches; after gpu-test (PARTS="aggregate overlap")
	@$(GPU_UNTIL); $(GPU_BENCH) $(PARTS)

lint: $(VENV)/.tests ## style, imports and types
	@$(BIN)/ruff check -q
	@$(BIN)/ruff format -q --check
	@$(BIN)/mypy --no-error-summary

format: $(VENV)/.tests ## put the code into its format
	@$(BIN)/ruff format -q

# Sphinx, since autodoc reads the docstrings of compiled and lazily loaded names as they are at run time. Its packages
# are the extra `docs`, which nothing else needs. A warning, such as one of a link that leads nowhere, is an error.
docs: setup ## the documentation as a site, with search: build/site/index.html
	@$(BIN)/python -c "import furo, myst_parser, sphinx_click, sphinx_copybutton" 2>/dev/null || .ci/setup "$(PYTHON)" $(VENV) docs
	@OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -E -W --keep-going -d build/doctrees docs build/site
	@echo "mgg: the site is build/site/index.html"

accuracy: setup ## published accuracies of GCN, GraphSAGE, GAT and PyG's example models, ten seeds each
	$(BIN)/python benchmarks/accuracy.py

bench: setup ## figures of docs/results.md, beside the peers that are installed
	$(BIN)/python benchmarks/aggregate.py rmat:18:16 $(wildcard $(CNR))
	$(BIN)/python benchmarks/epoch.py --models gcn,gin,sage,gat
	$(BIN)/python benchmarks/studies/exchanges.py transfers

bench-peers: $(PEERS)/.complete ## install the libraries that benchmarks compare with, into .venv-peers

# DGL asks for an older torch than it needs. Made anew when the lists change, so that no version of before stays.
$(PEERS)/.complete: benchmarks/peers/packages.txt benchmarks/peers/alone.txt
	rm -rf $(PEERS)
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install -qq --disable-pip-version-check $(PIP_INSTALL_FLAGS) -r benchmarks/peers/packages.txt
	$(PEERS)/bin/python -m pip install -qq --disable-pip-version-check --no-deps -r benchmarks/peers/alone.txt
	@touch $@

clean: ## remove what was built; graphs and runs stay
	rm -rf $(VENV) $(PEERS) build dist *.egg-info mgg_hpc/*.so mgg_hpc/*.pyi .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find mgg_hpc tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
