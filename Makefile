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

# GPU kernels are compiled again where CMAKE_ARGS says something else than the last time.
ifneq ($(strip $(CMAKE_ARGS)),)
ifneq ($(strip $(CMAKE_ARGS)),$(strip $(file <$(VENV)/.cuda.arguments)))
CUDA_ARGUMENTS := other-arguments
endif
endif

export PIP_INSTALL_FLAGS

.PHONY: openshmem-came other-arguments help setup cuda demo test test-fast test-long torture gpu-contact gpu-test gpu-bench gpu-results gpu-experiments lint format accuracy bench bench-peers clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

setup: $(VENV)/.complete ## build .venv: the package, its native extension, an MPI, the test tools

$(VENV)/.complete: $(METADATA) $(SOURCES)
	@.ci/setup "$(PYTHON)" $(VENV) $(if $(filter $(METADATA),$?),install,compile)

cuda: $(VENV)/.cuda ## add the GPU kernels (mgg_hpc/_cuda, _cuda_studies); no GPU is needed to build them

$(VENV)/.cuda: $(VENV)/.complete $(CUDA_ARGUMENTS)
	@.ci/setup "$(PYTHON)" $(VENV) cuda

inputs/digits.h5: | setup
	@$(BIN)/mgg import digits -o $@

demo: setup inputs/digits.h5 ## train a GCN on handwritten digits over 2 ranks (RANKS=4, MPI=system)
	@$(BIN)/mgg launch -n $(RANKS) --mpi $(MPI) train inputs/digits.toml

# Each is a list of parts (tests/suite/parts.py), shown as they run; logs are in build/tests.
SUITE := $(BIN)/python tests/suite/run.py

test-fast: setup ## what to run after every edit: 90 s
	@$(SUITE) fast

test: setup ## the test suite: 10 to 25 min on 2 cores
	@$(SUITE) test

test-long: setup ## the rest: GPU build, OpenSHMEM, Slurm, sanitizers, planted faults, other random numbers: 25 to 45 min
	@$(SUITE) long

torture: setup ## kill, stop and damage runs some 4,000 times, and keep what was found in docs/reliability.md: an hour
	@mkdir -p build/tests && rm -f build/tests/torture.jsonl
	@$(SUITE) torture
	@PYTHONPATH=tests $(BIN)/python tests/torture/page.py build/tests/torture.jsonl

# On a machine with a GPU and no network: neither .venv nor set-up. WHEELS is a folder with what PYTHON lacks.
# What has passed is not run again; PARTS="table memcheck" runs these, and again.
WHEELS ?=
PARTS ?=
empty :=
comma := ,
GPU_BUILD := build/gpu
GPU_PYTHON := MGG_DATA="$(MGG_DATA)" PYTHONPATH="$(abspath $(GPU_BUILD))/site:$(CURDIR):$(PYTHONPATH)" $(PYTHON)
GPU_PARTS := $(if $(PARTS),--again --parts $(subst $(empty) $(empty),$(comma),$(strip $(PARTS))))
# GPU_SHIM=folder: over the shim's modules there (tests/gpu/acceptance/shim_modules.py), with nothing to prepare.
GPU_SHIM ?=
GPU_PREPARE := $(if $(GPU_SHIM),true,$(PYTHON) tests/gpu/prepare.py $(GPU_BUILD) "$(WHEELS)")
GPU_ACCEPT = $(GPU_PYTHON) tests/gpu/accept.py $(1) --build $(GPU_BUILD) --results $(GPU_BUILD)/results $(GPU_PARTS) \
	$(if $(GPU_SHIM),--device shim --shim $(GPU_SHIM))

gpu-contact: ## ten minutes on this machine's GPU: build, and the parts that say most (PYTHON, WHEELS=folder)
gpu-test: ## the proof on this machine's GPU, by PYTHON (WHEELS=folder, PARTS="table memcheck")
gpu-contact gpu-test:
	@$(if $(GPU_SHIM),,rm -f $(VENV)/.cuda)  # its module is replaced by one for this GPU alone
	@began=$$(date +%s); $(GPU_PREPARE) && $(call GPU_ACCEPT,$(@:gpu-%=%)) --began $$began

gpu-bench: ## what that GPU reaches; after gpu-test (PARTS="aggregate sweep")
	@$(call GPU_ACCEPT,bench)

gpu-experiments: ## changes of a line or a flag, timed beside what stands; after gpu-contact (EXPERIMENTS="claims-1")
	@$(GPU_PYTHON) tests/gpu/variants/experiments.py --build $(GPU_BUILD) $(EXPERIMENTS)

# With matplotlib, which .venv has: a GPU machine may have none.
GPU_RESULTS ?= $(GPU_BUILD)/results
gpu-results: setup ## keep what gpu-test and gpu-bench found, and write docs/gpu-results.md (GPU_RESULTS=folder)
	@$(BIN)/python tests/gpu/page.py $(GPU_RESULTS)

lint: setup ## style, imports and types
	@$(BIN)/ruff check -q
	@$(BIN)/ruff format -q --check
	@$(BIN)/mypy --no-error-summary

format: setup ## put the code into its format
	@$(BIN)/ruff format -q

accuracy: setup ## published accuracies of GCN, GraphSAGE and GAT, ten seeds each
	$(BIN)/python benchmarks/accuracy.py

bench: setup ## the figures of the README, beside the peers that are installed
	$(BIN)/mgg bench aggregate rmat:18:16 $(wildcard $(CNR))
	$(BIN)/mgg bench epoch --model gcn,gin,sage,gat
	$(BIN)/python benchmarks/run.py

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
