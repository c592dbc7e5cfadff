# Every target sets up .venv by itself when it is missing or one of the files it is built from changed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test check format paper bench pictures clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

$(READY): pyproject.toml constraints.txt src/ponn/cells.c
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    --constraint constraints.txt --editable ".[learn,serve,dev]"
	touch $(READY)

demo: $(READY)  ## simulate a clinic, look at its log, learn a policy, value it, recommend
	mkdir -p demo
	$(BIN)/ponn simulate breast-cancer --out demo/breast-cancer.csv --truth demo/breast-cancer-truth.csv
	$(BIN)/ponn check demo/breast-cancer.csv --action regimen --reward survived
	$(BIN)/ponn learn demo/breast-cancer.csv --action regimen --reward survived --set select=fdr --out demo/policy.ponn
	$(BIN)/ponn evaluate demo/policy.ponn demo/breast-cancer.csv
	$(BIN)/ponn recommend demo/policy.ponn demo/breast-cancer.csv --out demo/recommendations.csv --keep age
	head -6 demo/recommendations.csv

test: $(READY)  ## run all tests
	$(BIN)/python -m pytest --numprocesses 2

check: $(READY)  ## the whole gate: format, lint, types, tests (docs are executed by the tests)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --numprocesses 2

format: $(READY)  ## format the code and apply safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

paper: $(READY)  ## the paper's tables and Figure 2 beside ours; goes on where it was stopped
	$(BIN)/python benchmarks/paper_tables.py

bench: $(READY)  ## run the benchmarks; raw results go to benchmarks/results
	$(BIN)/python benchmarks/read_and_encode_cost.py
	$(BIN)/python benchmarks/help_start_up.py
	$(BIN)/python benchmarks/bound_looseness.py
	$(BIN)/python benchmarks/relevance_rows_per_second.py
	$(BIN)/python benchmarks/discovery_calibration.py
	$(BIN)/python benchmarks/training_speed.py
	$(BIN)/python benchmarks/recommend_rows_per_second.py
	$(BIN)/python benchmarks/interval_coverage.py
	$(BIN)/python benchmarks/trial_evaluation.py
	$(BIN)/python benchmarks/evaluation_cost.py
	$(BIN)/python benchmarks/expected_interval_coverage.py
	$(BIN)/python benchmarks/serving_load.py

pictures: $(READY)  ## make the pictures of the documents again (needs chromium)
	$(BIN)/python docs/pictures.py

clean:  ## remove what the other targets made
	rm -rf .venv demo build dist src/ponn/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
