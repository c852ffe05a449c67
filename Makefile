# What a newcomer needs: `make demo` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
PYTHON ?= $(shell for p in /usr/bin/python3 python3; do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
RUN := $(VENV)/bin/python
BED := $(RUN) -m testbed

.PHONY: help setup demo test test-full lint unit contract cluster bench down clean crd chart

help: ## these lines
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

setup: $(VENV)/ready ## the virtual environment .venv, with everything that the other targets need

$(VENV)/ready: pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" bash scripts/setup.sh $(VENV)

demo: ## the main job: a Speedrun from `kubectl apply` to its val_loss, on this machine; PLATFORM=1: through the Platform API
	@bash scripts/consent.sh "make demo"
	@$(MAKE) -s --no-print-directory setup
	@$(RUN) -m testbed.demo$(if $(PLATFORM),_outside)

test: setup ## lint, types, unit, trainer, contract and cluster tests
	@bash scripts/test.sh

test-full: setup ## the same with the long forms
	@bash scripts/test.sh --full

lint: setup ## ruff, mypy, import-linter
	@bash scripts/lint.sh

bench: setup ## every bench; each ends with one line of JSON
	@bash scripts/bench.sh

crd: setup ## write crds/speedruns.yaml and the chart's copy from the models
	$(VENV)/bin/speedrun-operator crd | tee crds/speedruns.yaml >charts/speedrun-operator/crd/speedruns.yaml

chart: setup ## write what of charts/ is made: CRD, schema, table of values; and the bed's rights
	@$(RUN) -m testbed.chart

down: setup ## take the demo and its test bed down
	@$(RUN) -m testbed.demo --down
	@$(BED) down

clean: setup ## take everything down, remove the bed's users and state, and .venv; the cache of built tools stays
	@$(RUN) -m testbed.demo --down
	@$(BED) clean
	@TESTBED_NAME=w1 $(BED) clean # of the tests' second worker
	rm -rf $(VENV)
