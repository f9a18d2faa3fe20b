# Each target does its own set-up. Needs Python 3 of any version, and a package index.
#   make demo          watch a model learn
#   make test          everything that must hold
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

VENV := .venv
# cpu or gpu: which lock file is installed. What was installed last stays.
DEVICE ?= $(patsubst $(VENV)/.trinity-bus-%,%,$(firstword $(wildcard $(VENV)/.trinity-bus-*) $(VENV)/.trinity-bus-cpu))
BIN := $(VENV)/bin
STAMP := $(VENV)/.trinity-bus-$(DEVICE)
# The longest first, so that no worker is left with a long one at the end.
TESTS := tests/e2e tests/gpu_rehearsal tests/integration tests/attacks tests/unit
# Files of tests that run at a time, each worker with a broker of its own: two a core, for they wait more than they compute.
WORKERS ?= 4
# Which of them, for pytest's -m.
MARKED ?= not nightly

# Without a home folder that can be written, caches and data stay in the checkout.
ifneq ($(shell test -w "$${HOME:-/nonexistent}" && echo yes),yes)
export HOME := $(CURDIR)/.cache/home
endif

# Containers often forbid it, to stay small; here every process would compile all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-all stack-test chart-test cluster-test fuzz kills check docs site sbom audit hooks wheel images bench gpu-check gpu-rehearsal console-shots clean

help: ## Show this.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Install everything: environment, pinned packages, the broker's jars.

$(STAMP): tools/bootstrap.sh tools/compile_imports.py requirements/$(DEVICE).lock pyproject.toml trinity_bus/broker/kafka.lock
	@tools/bootstrap.sh $(DEVICE) $(STAMP)

# Of the command line: an environment may have a NAME of its own.
DEMO := $(if $(filter command,$(firstword $(origin NAME))),$(NAME))

demo: setup ## Run the whole mesh and watch a model learn. Options: NAME=sums or NAME=tools ARGS='...'
	@$(if $(filter sums,$(DEMO)),tools/smollm2.sh)
	@$(BIN)/trinity-bus demo $(DEMO) $(ARGS)

test: check ## Lint and types, then unit, integration and e2e tests. Options: ARGS='...'
	@$(BIN)/pytest $(TESTS) -m "$(MARKED)" --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-all: ## The same, with all cases of tests that `make test` samples, and short runs of all benchmarks.
	@$(MAKE) test MARKED=

stack-test: setup ## Build the images, bring the compose stack up, test and break it. Needs Docker. Options: ARGS='...'
	@$(BIN)/pytest tests/stack $(ARGS)

chart-test: setup ## Lint and render the Helm chart, check it against schemas and policies. Needs Go. Options: ARGS='...'
	@tools/tool_env.sh chart
	@tools/helm.sh
	@$(BIN)/pytest tests/chart $(ARGS)

cluster-test: setup ## Install and change the Helm chart on a real control plane of Kubernetes, without machines. Needs Go. Options: ARGS='...'
	@tools/helm.sh
	@tools/cluster.sh
	@$(BIN)/pytest tests/cluster $(ARGS)

fuzz: setup ## A million damaged inputs for every decoder and the coordinator. Options: ARGS='--inputs 5000 --seed 7'
	@$(BIN)/python -W ignore -m tests.support.fuzz.run $(ARGS)

kills: setup ## Kill a trainer thirty times at random instants, in each way of publishing. Options: FAULT_KILLS=60 FAULT_SEED=7
	@FAULT_KILLS=$${FAULT_KILLS:-30} $(BIN)/pytest -s tests/integration/training/test_sigkills.py

hooks: setup ## Let git run the checks before each commit.
	@tools/tool_env.sh tools
	@.cache/tools/bin/pre-commit install

wheel: setup ## Build the wheel into dist/, from pinned packages only.
	@tools/wheel.sh dist

images: ## Build the images of the compose stack. Needs Docker.
	@docker compose --project-directory deploy/docker-compose build $(ARGS)

check: setup ## Lint, formatting, types, layers, plain words, budgets of lines, generated documents.
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --cache-dir .cache/import-linter
	@$(BIN)/python -m tools.plain_words
	@$(BIN)/python -m tools.house --check
	@$(BIN)/python -m tools.render_asyncapi --check
	@$(BIN)/python -m tools.render_settings --check
	@$(BIN)/python -m tools.render_architecture --check
	@$(BIN)/python -m tools.render_chart --check
	@$(BIN)/python -m tools.render_sizing --check
	@$(BIN)/python -m tools.render_speed --check

docs: setup ## Regenerate documents: asyncapi.yaml, settings.md, tables of architecture.md and sizing.md, the chart's topics.
	@$(BIN)/python -m tools.render_asyncapi
	@$(BIN)/python -m tools.render_settings
	@$(BIN)/python -m tools.render_architecture
	@$(BIN)/python -m tools.render_chart
	@$(BIN)/python -m tools.render_sizing
	@$(BIN)/python -m tools.render_speed

site: setup ## Build the documentation as a site, into build/site: links checked, warnings are errors.
	@tools/tool_env.sh site
	@NO_MKDOCS_2_WARNING=1 .cache/site/bin/mkdocs build --strict
	@echo "build/site/index.html"

sbom: setup ## Write a bill of materials (CycloneDX) and a list of licences into build/sbom.
	@tools/tool_env.sh tools
	@$(BIN)/python tools/sbom.py --device $(DEVICE)

audit: sbom ## Check the locked packages for known vulnerabilities. Exit code 3 if no database answers.
	@$(BIN)/python tools/audit.py $(ARGS)

bench: setup ## Run one benchmark of benchmarks/, e.g. NAME=codec. Options: ARGS='--short'
	@if [ ! -f "benchmarks/$(NAME).py" ]; then \
	  echo "make bench NAME=...: one of $(basename $(notdir $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py))))" >&2; exit 2; fi
	@$(BIN)/python -m benchmarks.$(NAME) $(ARGS)

gpu-check: setup ## Test each part on this machine's GPUs in ten minutes, and write build/gpu.json. With DEVICE=gpu. Options: ARGS='--short'
	@$(BIN)/python -m benchmarks.gpu --results build $(ARGS)

gpu-rehearsal: setup ## Run the GPU path without a GPU: trainer, vLLM's GPU engine, the demo, on a stand-in for CUDA. Downloads 8 GB. Options: ARGS='...'
	@tools/tool_env.sh gpu
	@.cache/gpu/bin/pytest tests/gpu_rehearsal $(ARGS)

console-shots: setup ## Check every page of a running console in Chromium with axe, and save pictures: URL=http://127.0.0.1:8900
	@tools/tool_env.sh shots
	@$(BIN)/python -m tools.console_shots --axe .cache/shots/lib/python3.12/site-packages/axe_playwright_python/axe.min.js $(ARGS) $(or $(URL),http://127.0.0.1:8900)

clean: ## Remove files of set-up, tests and tools. Caches in the home folder and runs/ stay.
	@rm -rf $(VENV) .cache build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
