# Everything on a machine that has python >= 3.11, pip and make.
#   make test      lint, type-check, tests in float64 and a subset in float32
#   make test-slow the tests of more than some seconds that `make test` leaves out
#   make test-long those of more than ten seconds, slow ones in float32, notebooks
#   make compare   nested EP, Laplace and MCMC on Iris: a table and a picture

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DATA ?= iris
ARGS ?=

# Small factorisations lose far more to waiting threads than they gain.
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1

.PHONY: test test-slow test-long lint types compare speed clean

test: lint types $(VENV)/test.stamp
	$(BIN)/pytest -n auto -m "not slow and not long"
	JGP_TEST_PRECISION=float32 $(BIN)/pytest -n auto -m "float32 and not slow and not long"

test-slow: $(VENV)/test.stamp
	$(BIN)/pytest -n auto -m "slow and not long"

test-long: $(VENV)/test.stamp
	$(BIN)/pytest -n auto -m long
	JGP_TEST_PRECISION=float32 $(BIN)/pytest -n auto -m "float32 and slow"

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/test.stamp
	$(BIN)/basedpyright --pythonpath $(BIN)/python

# Compiles twice as fast, and runs as fast here.
compare: export XLA_FLAGS ?= --xla_cpu_use_fusion_emitters=false
compare: $(VENV)/benchmarks.stamp
	$(BIN)/python -m benchmarks.compare --data $(DATA) $(ARGS)

speed: $(VENV)/benchmarks.stamp
	$(BIN)/python -m benchmarks.speed

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

$(VENV)/%.stamp: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) results
