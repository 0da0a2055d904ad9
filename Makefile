# make demo, make test, make lint: each sets up .venv on its first run and needs nothing but Python 3.11.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ZOO ?= ../shared/zoo
PYTEST_ARGS ?=
SECONDS ?= 60
JOBS ?= 2
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: help demo dist test-install test test-doors test-ray test-zoo test-browser test-clients test-matrix fuzz lint format docs soak load sbom bench-rewrite bench-large bench-zoo bench-speed bench-placement bench-smoke clean

help:
	@echo "make demo           quantize a small image classifier and show what it gains"
	@echo "make test           run the tests; those of the report's page where a Chromium is found"
	@echo "make test-doors     send every hostile model through every verb and function: cases × doors, counted"
	@echo "make test-ray       calibration and evaluation on a Ray cluster of three nodes, in which something is killed"
	@echo "make test-zoo       run the tests that need the models of ZOO=$(ZOO)"
	@echo "make test-browser   run the tests of the report's page; on Debian it installs Chromium first"
	@echo "make test-clients   run projects that quantize with onnxruntime.quantization on Octavo instead"
	@echo "make test-web       load variants of model folders with transformers.js in Node and in Chromium (needs npm)"
	@echo "make test-matrix    run the drop-in's tests with each supported release of onnxruntime and onnx"
	@echo "make fuzz           fuzz every reader for SECONDS=60 with JOBS=2 workers"
	@echo "make lint           ruff, mypy and the import layers"
	@echo "make format         let ruff format and fix what it can"
	@echo "make docs           generate the pages that come from tables, and build the site in out/site"
	@echo "make soak           500 quantizations in one process, then 200 that are killed: does anything grow or break?"
	@echo "make load           8 processes at once, runs to one output, kills and faults: counted and printed"
	@echo "make dist           wheel and source archive in dist/, built twice with the same bytes; digests, SBOM"
	@echo "make test-install   the wheel of dist/ in empty environments: Python 3.11-3.13, lowest and newest needs"
	@echo "make sbom           what Octavo stands on, as CycloneDX in out/sbom.cdx.json"
	@echo "make bench-rewrite  how the time to quantize grows with the graph"
	@echo "make bench-large    memory needed for a model beyond 2 GB"
	@echo "make bench-zoo      accuracy, size and speed of every model in ZOO=$(ZOO)"
	@echo "make bench-speed    speed of models built in code, beside float and onnxruntime.quantization"
	@echo "make bench-placement  each placement rule for ONNX Runtime's CPU, measured again"
	@echo "make bench-smoke    every benchmark once at its smallest, to see that it works"
	@echo "make clean          remove .venv, caches and out/"

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The package with what it needs to run; the source is linked, so edits count at once.
$(VENV)/.base: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.base

demo: $(VENV)/.base
	$(BIN)/python examples/fashion_mnist/demo.py

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)
	@$(BIN)/python tests/browser/chromium.py

test-doors: $(VENV)/.dev
	$(BIN)/python tests/hostile/matrix.py --jobs $(JOBS) $(DOORS_ARGS)

$(VENV)/.ray: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,ray]'
	@touch $@ $(VENV)/.base $(VENV)/.dev

test-ray: $(VENV)/.ray
	OCTAVO_CLUSTER=1 $(BIN)/python -m pytest -s tests/cluster tests/calibration/engines/test_ray.py $(PYTEST_ARGS)

test-zoo: $(VENV)/.dev
	OCTAVO_ZOO_DIR=$(abspath $(ZOO)) $(BIN)/python -m pytest -n 2 -m zoo $(PYTEST_ARGS)

test-browser: $(VENV)/.dev
	@$(BIN)/python tests/browser/chromium.py --find || $(SUDO) apt-get install -y chromium
	$(BIN)/python -m pytest tests/browser $(PYTEST_ARGS)

test-clients:
	$(PYTHON) tests/clients/run.py $(CLIENTS)

# Packages of npm, in a folder that is not part of the project; their install scripts are not run.
.web/.installed:
	@mkdir -p .web
	@if command -v npm >/dev/null; then \
		npm install --silent --no-audit --no-fund --ignore-scripts --prefix .web '@huggingface/transformers@^4' onnxruntime-web && touch $@; \
	else echo "npm is not installed; the tests of web clients are skipped"; fi

.PHONY: test-web
test-web: $(VENV)/.dev .web/.installed
	$(BIN)/python -m pytest tests/web -rs $(PYTEST_ARGS)
	@$(BIN)/python tests/web/clients.py

test-matrix:
	$(PYTHON) scripts/test_matrix.py $(MATRIX_ARGS)

fuzz: $(VENV)/.dev
	$(BIN)/python fuzz/run.py all --seconds $(SECONDS) --jobs $(JOBS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.docs: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@ $(VENV)/.base

docs: $(VENV)/.docs
	$(BIN)/python scripts/generate_docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

soak: $(VENV)/.base
	$(BIN)/python scripts/soak.py --kills 200 $(SOAK_ARGS)

load: $(VENV)/.dev
	$(BIN)/python -m pytest -s tests/hostile/test_kills.py tests/hostile/test_faults.py $(PYTEST_ARGS)

$(VENV)/.dist: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dist]'
	@touch $@ $(VENV)/.base

dist: $(VENV)/.dist
	$(BIN)/python scripts/dist.py dist

test-install: dist
	$(PYTHON) scripts/test_install.py $(INSTALL_ARGS)

sbom: $(VENV)/.base
	$(BIN)/python scripts/sbom.py out/sbom.cdx.json

$(VENV)/.bench: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	@touch $@ $(VENV)/.base

bench-rewrite: $(VENV)/.bench
	$(BIN)/python benchmarks/rewrite.py

bench-large: $(VENV)/.bench
	$(BIN)/python benchmarks/large.py

bench-zoo: $(VENV)/.bench
	$(BIN)/python benchmarks/zoo.py --zoo $(ZOO)

bench-speed: $(VENV)/.bench
	$(BIN)/python benchmarks/speed.py

bench-smoke: $(VENV)/.bench
	OCTAVO_ZOO_DIR=$(abspath $(ZOO)) $(BIN)/python benchmarks/smoke.py $(SMOKE_ARGS)

bench-placement: $(VENV)/.bench
	$(BIN)/python benchmarks/placement.py

clean:
	rm -rf $(VENV) .matrix .clients out build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
