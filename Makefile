# Every target sets up .venv by itself when it is missing or one of the files it is built from changed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
CLUSTERS := .venv/.clusters

.DEFAULT_GOAL := help
.PHONY: help demo test fast lowest lint check format docs paper peers bench pictures browser java clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

$(READY): pyproject.toml constraints.txt src/ponn/steps/cells.c
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    --constraint constraints.txt --editable ".[learn,serve,dev]"
	touch $(READY)

# Ray and Spark, for the tests only; Spark is packed on the first install, which takes a minute.
$(CLUSTERS): $(READY)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    --constraint constraints.txt --editable ".[cluster,spark]"
	touch $(CLUSTERS)

demo: $(READY)  ## simulate a clinic, look at its log, learn a policy, value it, recommend
	$(BIN)/ponn demo demo

test: lint $(CLUSTERS) browser java  ## the whole gate: format, lint, types, tests (docs are executed by the tests)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 10

# What needs a browser, a cluster or minutes is left to the whole gate.
SLOW := tests/engine/test_clusters.py tests/training/test_trainers.py tests/serving tests/test_docs.py tests/test_wheel.py
fast: $(READY)  ## the tests that need neither browser nor cluster
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(addprefix --ignore=,$(SLOW))

LOWEST := .venv-lowest
lowest:  ## the quick tests with the oldest versions that pyproject.toml promises
	test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	$(PYTHON) .ci/lowest.py > $(LOWEST)/constraints.txt
	PIP_CONSTRAINT=$(CURDIR)/$(LOWEST)/constraints.txt $(LOWEST)/bin/python -m pip install --quiet \
	    --disable-pip-version-check ".[learn,serve,dev]"
	$(LOWEST)/bin/python -m pytest --numprocesses 2 --dist loadfile $(addprefix --ignore=,$(SLOW))

lint: $(READY)  ## the quick part of the gate: format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Debian's Chromium for the tests of the pages, where it can be had without asking for rights; else they use a browser
# that is there, or are skipped and say so.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { test "$$(id -u)" = 0 && \
	    command -v apt-get >/dev/null && timeout 60 apt-get update -qq && \
	    timeout 240 apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
	    echo "No browser, and none could be installed: the tests of the pages will be skipped." >&2

# Java for the tests on Spark, by the same rule.
java:
	@command -v java >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
	    timeout 60 apt-get update -qq && \
	    timeout 240 apt-get install -y -qq --no-install-recommends default-jre-headless >/dev/null; } || \
	    echo "No Java, and none could be installed: the tests on Spark will be skipped." >&2

check: test  ## the same as test

format: $(READY)  ## format the code and apply safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

paper: $(READY)  ## the paper's tables and Figure 2 beside ours; goes on where it was stopped
	$(BIN)/python benchmarks/paper_tables.py

docs: $(READY)  ## build the documentation as a site into build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

DATA ?=
EVERYONE ?=
peers: $(READY)  ## every peer beside ours on the same logs, in environments of their own; goes on where it was stopped
	$(BIN)/python benchmarks/peers/environments.py
	$(BIN)/python benchmarks/against_peers.py --workers 2 $(if $(DATA),--data $(DATA)) $(if $(filter yes,$(EVERYONE)),--everyone)

bench: $(READY)  ## run the benchmarks; raw results go to benchmarks/results
	$(BIN)/python benchmarks/read_and_encode_cost.py
	$(BIN)/python benchmarks/help_start_up.py
	$(BIN)/python benchmarks/bound_looseness.py
	$(BIN)/python benchmarks/relevance_rows_per_second.py
	$(BIN)/python benchmarks/discovery_calibration.py
	$(BIN)/python benchmarks/training_speed.py
	$(BIN)/python benchmarks/vanishing_weights.py
	$(BIN)/python benchmarks/recommend_rows_per_second.py
	$(BIN)/python benchmarks/interval_coverage.py
	$(BIN)/python benchmarks/rare_outcomes.py
	$(BIN)/python benchmarks/trial_evaluation.py
	$(BIN)/python benchmarks/evaluation_cost.py
	$(BIN)/python benchmarks/expected_interval_coverage.py
	$(BIN)/python benchmarks/serving_load.py
	$(BIN)/python benchmarks/passes_against_reading.py --engines local

pictures: $(READY) browser  ## make the pictures of the docs again, by the tools themselves
	$(BIN)/python docs/pictures.py

clean:  ## remove what the other targets made
	rm -rf .venv .venv-peers .venv-lowest demo build dist src/ponn/steps/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
