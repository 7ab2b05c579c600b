# Everything that people and CI call. `make help` lists it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PLATFORM ?= h200
SWEEP ?= demo
# Make takes any name, and would plan h200 where somebody wrote platform=h100.
SMALL := $(filter platform=% sweep=% model=% gpus=% results=% runs=% measured=%,$(MAKEOVERRIDES))
$(if $(SMALL),$(error variables have capitals, as in `make plan PLATFORM=h100`, not $(SMALL)))
INJECTIONS ?= 300
REAL ?= 30
SEED ?= 1
INPUTS ?= 100000
# Which Slurm: empty for the machine's own; 22.05 or 24.11 for that of a Debian installed beside it.
SLURM ?=
IN_DEBIAN := $(if $(SLURM),$(BIN)/python -m tests.slurm.debian $(SLURM) --)
# Slurm's test cluster installs Debian packages and starts daemons, so it wants root.
CLUSTER := $(PYTHON) tests/slurm/cluster.py

# Tests of the one cluster wait more than they work; all others run beside them in a few processes,
# which take a file at a time, first of those that take longest.
ON_CLUSTER := tests/slurm tests/chaos
LONGEST := tests/workflow tests/training
DIRECTORIES := $(patsubst %/,%,$(sort $(dir $(wildcard tests/*/test_*.py))))
OTHERS := $(filter-out $(ON_CLUSTER) $(LONGEST),$(DIRECTORIES)) $(wildcard tests/test_*.py)
BY_FILE := --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
# sh is dash on Debian, which drops the shell function `module` that jobs inherit.
SHELL := bash

.PHONY: help environment measure sensors site release test-without-torch test-demo demo plan project slots place check status archive rebuild evidence compare claims profiles test test-older-cpu test-long test-all lint format equality benchmarks chaos test-slurm test-apptainer try-slurm slurm-cluster slurm-cluster-stop clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 22

# ------------------------------------------------------------------------------ the environment

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "triptych needs Python 3.11 or newer; set PYTHON, as in make PYTHON=python3.12 demo" >&2; exit 1; }
	@test -w "$(dir $(VENV))" || \
	  { echo "$(VENV) cannot be made: $(abspath $(dir $(VENV))) is missing, or read-only for you. Work in a" \
	    "clone of your own, or name other places, as in make VENV=/tmp/triptych-venv RESULTS=/tmp/triptych-results plan" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "python3 -m venv failed: on Debian, apt-get install python3-venv" >&2; exit 1; }
	@$@ -c 'import pathlib, sys, sysconfig; pathlib.Path(sysconfig.get_path("purelib"), "triptych.pth").write_text(sys.argv[1] + "\n")' "$(CURDIR)"

$(VENV)/.installed: envs/local.txt envs/analysis.txt envs/training.txt | $(BIN)/python
	@$(BIN)/python envs/install.py envs/local.txt
	@touch $@ $(VENV)/.installed-analysis

$(VENV)/.installed-tests: envs/test.txt $(VENV)/.installed
	@$(BIN)/python envs/install.py envs/test.txt
	@touch $@

# What a laptop needs that only rebuilds: no torch.
$(VENV)/.installed-analysis: envs/analysis.txt | $(BIN)/python
	@$(BIN)/python envs/install.py envs/analysis.txt
	@touch $@

$(VENV)/.installed-site: envs/site.txt | $(BIN)/python
	@$(BIN)/python envs/install.py envs/site.txt
	@touch $@

environment: $(VENV)/.installed ## install pinned versions into .venv

# ------------------------------------------------------------------------------ the workflow

demo: $(VENV)/.installed ## the whole workflow on this machine, in minutes
	@$(BIN)/python -m workflow_lib.run demo --brief

# SWEEP where it is given, not its default.
ONE_SWEEP = $(if $(filter file,$(origin SWEEP)),,$(SWEEP))

plan: $(VENV)/.installed ## what PLATFORM's sweeps, or SWEEP, would run and cost, and what cannot run
	@$(BIN)/python -m workflow_lib.plan \
	  $(if $(ONE_SWEEP),--sweep "$(ONE_SWEEP)",--platform $(PLATFORM)) \
	  --output "$(or $(RESULTS),results)/plans/$(or $(ONE_SWEEP),$(PLATFORM))/plan.parquet"

# MODEL and PLATFORM are files of config/; BATCH (sequences), TOKENS and RUNS (what `python -m
# workflow_lib.projection collect` wrote) may be given besides, and what a GPU_HOUR and a KWH cost in EUR.
project: $(VENV)/.installed ## what MODEL would do on GPUS of PLATFORM, however many there are, with intervals
	@test -n "$(MODEL)" && test -n "$(GPUS)" || \
	  { echo "say which: make project MODEL=llama3-70b PLATFORM=h200 GPUS=1024" >&2; exit 1; }
	@$(BIN)/python -m workflow_lib.projection project --model "$(MODEL)" --platform "$(PLATFORM)" \
	  --gpus "$(GPUS)" $(if $(BATCH),--batch "$(BATCH)") $(if $(TOKENS),--tokens "$(TOKENS)") \
	  $(if $(RUNS),--runs "$(RUNS)") $(if $(GPU_HOUR),--price-per-gpu-hour "$(GPU_HOUR)") \
	  $(if $(KWH),--price-per-kwh "$(KWH)") --output "results/projections/$(MODEL)_$(PLATFORM)_$(GPUS)"

# What the sweep "slots" measured on PLATFORM, or another sweep, MEASURED.
MEASURED ?= $(or $(RESULTS),results)/sweeps/slots-$(PLATFORM)

slots: $(VENV)/.installed-analysis ## which GPUs of PLATFORM are slow or hot, by the sweep "slots"
	@$(BIN)/python -m workflow_lib.placement slots "$(MEASURED)" \
	  --output "results/placements/$(notdir $(MEASURED))"

place: $(VENV)/.installed-analysis ## whether to place CELL's work by its GPUs, and the sweep that tries it
	@test -n "$(CELL)" || \
	  { echo "say which cell of $(MEASURED): make place CELL=h200x4/llama3-8b/…" >&2; exit 1; }
	@$(BIN)/python -m workflow_lib.placement place "$(MEASURED)" --cell "$(CELL)" \
	  --output "results/placements/$(subst /,_,$(CELL))" --write config/sweeps/placed.yaml

check: $(VENV)/.installed ## whether PLATFORM's file, account, Python, sensors and clocks are right, by a short job
	@$(BIN)/python -m workflow_lib.check --platform "$(PLATFORM)" $(if $(RESULTS),--results "$(RESULTS)")

status: $(VENV)/.installed ## where every run of RESULTS is, and why runs failed
	@$(BIN)/python -m workflow_lib.status $(if $(RESULTS),--results "$(RESULTS)")

archive: $(VENV)/.installed-analysis ## pack SWEEP with its raw files into ARCHIVE, under LICENCE
	@$(BIN)/python -m workflow_lib.archive pack --sweep "$(SWEEP)" \
	  $(if $(ARCHIVE),--output "$(ARCHIVE)") $(if $(LICENCE),--licence "$(LICENCE)")

# ARCHIVE is a path, or a name in results/archives or evidence. INTO is another place than
# rebuilt/<name>; AGAIN=1 replaces what an earlier rebuild left.
rebuild: $(VENV)/.installed-analysis ## check ARCHIVE, and make its tables, figures and page anew
	@test -n "$(ARCHIVE)" || { echo "say which: make rebuild ARCHIVE=demo" >&2; exit 1; }
	@$(BIN)/python -m workflow_lib.archive rebuild "$(ARCHIVE)" \
	  $(if $(INTO),--into "$(INTO)") $(if $(AGAIN),--again)

evidence: $(VENV)/.installed-analysis ## check what was measured, and make its tables, figures and pages anew
	@$(BIN)/python -m docs.evidence

# A sweep's directory: what has a slash, else one of yours under results/sweeps, else one of the evidence.
sweep_of = $(if $(findstring /,$(1)),$(1),$$(test -d "results/sweeps/$(1)" || test ! -f "evidence/$(1).zip" \
  && echo "results/sweeps/$(1)" || echo "rebuilt/evidence/$(1)/results/sweeps/$(1)"))
# Makes the evidence where one of some sweeps is of it, and warns each time that it is not as recorded.
evidence_of = test -z "$(filter evidence-%,$(1))" || { \
  test -d rebuilt/evidence || $(BIN)/python -m docs.evidence; \
  test -d rebuilt/evidence || exit 1; test -f rebuilt/evidence.as-recorded || \
  echo "What follows is by rebuilt/evidence, which is not as recorded: make evidence says what differs" >&2; }

compare: $(VENV)/.installed-analysis ## sweeps A and B side by side: ratios, intervals, and words for them
	@test -n "$(A)" && test -n "$(B)" || \
	  { echo "say which: make compare A=parallelism-h200 B=parallelism-h100" >&2; exit 1; }
	@$(call evidence_of,$(A) $(B))
	@$(BIN)/python -m workflow_lib.comparison "$(call sweep_of,$(A))" "$(call sweep_of,$(B))" \
	  --output "$(or $(OUTPUT),results/comparisons/$(notdir $(A))_vs_$(notdir $(B)))"

# Without SWEEPS, what this repository's evidence says.
claims: $(VENV)/.installed-analysis ## verdicts on config/claims.yaml by SWEEPS, or by the evidence
	@$(call evidence_of,$(or $(SWEEPS),evidence-all))
	@$(BIN)/python -m workflow_lib.claims \
	  $(if $(SWEEPS),$(foreach sweep,$(SWEEPS),"$(call sweep_of,$(sweep))"),rebuilt/evidence/*/results/sweeps/*) \
	  --project config --output "$(or $(OUTPUT),$(if $(SWEEPS),results/claims,rebuilt/claims))"

# PARTS are some of cost, sensor, map and counter.
sensors: $(VENV)/.installed ## what readings of power and energy of this machine's NVIDIA GPUs miss, in eighteen minutes
	@mkdir -p results/sensors
	@$(BIN)/python research/sensors_on_gpus.py $(if $(PARTS),--parts $(PARTS)) \
	  --output "$(or $(OUTPUT),results/sensors/$$(date +%F).jsonl)"

measure: $(VENV)/.installed-analysis ## build dist/triptych.pyz, one file that measures any command
	@$(BIN)/python -m workflow_lib.measure.bundle

release: measure ## build the wheel, dist/triptych.pyz and their checksums in dist/
	@rm -rf build dist/*.whl
	@SOURCE_DATE_EPOCH="$$(git log -1 --format=%ct || date +%s)" $(BIN)/python -m pip wheel \
	  --quiet --no-index --no-deps --no-build-isolation --wheel-dir dist . && rm -rf build
	@cd dist && sha256sum *.whl triptych.pyz > SHA256SUMS && cat SHA256SUMS

# Of what git tracks. mkdocs has an environment of its own.
site: ## the documentation as a static site, rebuilt/site/site/index.html
	@$(MAKE) --no-print-directory VENV=.venv-site .venv-site/.installed-site
	@.venv-site/bin/python -m docs.site rebuilt/site
	@NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --strict --quiet -f rebuilt/site/mkdocs.yml
	@echo rebuilt/site/site/index.html

profiles: $(VENV)/.installed ## make `snakemake --profile slurm_h200` work as typed, by links in your configuration
	@$(BIN)/python profiles/register.py

# ------------------------------------------------------------------------------ development

# Tests share the cores: threads of numerical libraries that wait for one another would take them.
test test-older-cpu test-long equality: export OMP_NUM_THREADS = 1

test: $(VENV)/.installed-tests lint ## what must hold, the real Slurm included, in minutes
	@sh tests/slurm/install.sh || true
	@sh tests/browser/install.sh || true
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	  $(BIN)/python -m pytest $(ON_CLUSTER) >"$$log" 2>&1 & cluster=$$!; \
	  $(BIN)/python -m pytest -n 4 $(BY_FILE) $(LONGEST) $(OTHERS); code=$$?; \
	  wait $$cluster || code=$$?; cat "$$log"; exit $$code

# With the instructions of an older CPU torch has other products in bf16.
OLDER = $(LONG)
AVX2 := ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2

test-older-cpu: $(VENV)/.installed-tests ## what takes longer of training, limited to AVX2
	@$(AVX2) $(BIN)/python -m pytest -n 3 $(BY_FILE) -m $(OLDER) tests/training

# What needs no torch, in an environment without it. Slots and places are those of docs/artifact.md.
SLOTS := rebuilt/evidence/evidence-slots-x2/results/sweeps/evidence-slots-x2
PIPELINE := h200x2/llama3-8b/tp1-pp2-dp1_mb1-gb8-bf16-zero1-compiled-torch_d47963b9

# With numpy's kernels for another processor the evidence, whose digests are of this one, has to be the same.
test-without-torch: ## make the evidence as on another processor, and what else needs no torch, in an environment of its own
	@OPENBLAS_CORETYPE=Haswell $(MAKE) --no-print-directory VENV=.venv-analysis evidence
	@$(MAKE) --no-print-directory -j 2 VENV=.venv-analysis claims compare slots \
	  A=evidence-one-gpu-h200x1 B=evidence-one-gpu-h100x1 MEASURED=$(SLOTS)
	@$(MAKE) --no-print-directory VENV=.venv-analysis place MEASURED=$(SLOTS) CELL=$(PIPELINE)
	@rm config/sweeps/placed.yaml
	@$(MAKE) --no-print-directory site

CLONE := rebuilt/clone

test-demo: ## the demo twice in a copy without results, and its archive rebuilt without torch
	@rm -rf $(CLONE) && mkdir -p $(CLONE)
	@tar -c --exclude='./.*' --exclude='./rebuilt' --exclude='./results/*' . | tar -x -C $(CLONE)
	@test ! -d .venv || ln -s "$(CURDIR)/.venv" $(CLONE)/.venv
	@$(MAKE) --no-print-directory -C $(CLONE) demo
	@$(MAKE) --no-print-directory -C $(CLONE) demo | grep "5 of which are done"
	@$(MAKE) --no-print-directory -C $(CLONE) VENV="$(CURDIR)/.venv-analysis" archive SWEEP=demo LICENCE=CC0-1.0
	@OPENBLAS_CORETYPE=Haswell $(MAKE) --no-print-directory -C $(CLONE) VENV="$(CURDIR)/.venv-analysis" rebuild ARCHIVE=demo
	@rm -rf $(CLONE)

LONG := "long and not equality and not kills"

test-long: $(VENV)/.installed-tests ## what takes longer elsewhere: more sites, profiles and faults, and the evidence
	@sh tests/slurm/install.sh || true
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	  $(BIN)/python -m pytest -m $(LONG) $(ON_CLUSTER) >"$$log" 2>&1 & cluster=$$!; \
	  $(BIN)/python -m pytest -n 3 $(BY_FILE) -m $(LONG) tests/workflow $(OTHERS); code=$$?; \
	  wait $$cluster || code=$$?; cat "$$log"; exit $$code

test-all: OLDER = "not equality and not kills"
test-all: test test-older-cpu test-long ## all tests: each kill of a rule, and INPUTS made-up files for every reader, for hours
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m kills tests/workflow tests/slurm
	@OMP_NUM_THREADS=1 TRIPTYCH_FUZZ_INPUTS=$(INPUTS) $(BIN)/python -m pytest -n auto tests/fuzz

lint: $(VENV)/.installed-tests ## style, types, shell scripts and rules
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy
	@report=$$($(BIN)/lint-imports --no-logo --no-cache) || { echo "$$report"; exit 1; }
	@$(BIN)/snakefmt --check Snakefile workflow rules
	@$(BIN)/shellcheck tests/slurm/install.sh tests/browser/install.sh .ci/run tests/launch/golden/*.sh
	@$(BIN)/snakemake --lint --config platform=local

format: $(VENV)/.installed-tests ## rewrite in the project's style
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .
	@$(BIN)/snakefmt Snakefile workflow rules

equality: $(VENV)/.installed-tests ## train every layout, and compare it with one process
	@$(BIN)/python -m pytest -m "" --timeout 7200 tests/training/test_equality.py tests/training/test_float8.py

benchmarks: $(VENV)/.installed-tests ## print the figures that the documentation claims
	@code=0; for benchmark in benchmarks/*.py research/[a-z]*.py; do $(BIN)/python $$benchmark || code=1; done; exit $$code

chaos: $(VENV)/.installed-tests ## put INJECTIONS faults into runs on a Slurm of its own, as root
	@$(if $(SLURM),true,sh tests/slurm/install.sh)
	@$(IN_DEBIAN) $(BIN)/python -m tests.chaos --injections $(INJECTIONS) --real $(REAL) --seed $(SEED)

test-slurm: $(VENV)/.installed-tests ## the tests of the cluster, on SLURM=24.11 for instance; as root
	@$(if $(SLURM),true,sh tests/slurm/install.sh)
	@OMP_NUM_THREADS=1 $(IN_DEBIAN) $(BIN)/python -m pytest -m "" tests/slurm

test-apptainer: $(VENV)/.installed-tests ## run a sweep in containers, on a Debian with apptainer installed beside this; as root
	@$(BIN)/python -m tests.slurm.debian 24.11-apptainer -- $(BIN)/python -m pytest -m "" tests/slurm/test_apptainer.py

slurm-cluster: ## start a throwaway Slurm of five GPU nodes on this machine
	@sh tests/slurm/install.sh
	@$(CLUSTER) start

try-slurm: $(VENV)/.installed ## run the smoke sweep on a throwaway Slurm with simulated GPUs, as root
	@sh tests/slurm/install.sh
	@$(CLUSTER) start
	@$(BIN)/python -m tests.slurm.trial

slurm-cluster-stop: ## remove the throwaway Slurm without a trace, and what try-slurm made
	@$(CLUSTER) stop
	@rm -rf try-slurm

clean: ## remove the environment and caches, but no results
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
