# The set-up and the daily commands. `make help` lists them.

PYTHON ?=

# Stamps are named by the content of what they were made of: files that are newer, as in a fresh
# checkout, but not others, install nothing.
digest = $(shell sha256sum $(1) | sha256sum | cut -c 1-16)
venv := .venv/installed-$(call digest,requirements/lock.txt requirements/make_venv.sh setup.py)
gpu := .venv/gpu-installed-$(call digest,requirements/gpu.lock.txt)

# Resolves requirements/$(1).in into requirements/$(2).txt, by the shell variable uv.
resolve = $$uv pip compile requirements/$(1).in --python-version 3.11 \
	    --python-platform x86_64-manylinux_2_31 --generate-hashes --no-emit-index-url \
	    --no-emit-find-links --custom-compile-command "make lock" --quiet \
	    --output-file requirements/$(2).txt

.PHONY: help quickstart test test-thorough test-trainings test-all fuzz faults lint results notebook docs docs-fast test-site docs-serve lock venv own-venv gpu clean
.DEFAULT_GOAL := help

help:  ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

quickstart: $(venv)  ## train and evaluate a personalized federation on handwritten digits
	.venv/bin/python programs/train.py --config=configs/digits.py:ditto \
	    --output_dir=runs/quickstart --resume

test: $(venv)  ## run the quick tests (four minutes)
	.venv/bin/python -m pytest -n 2 --dist loadfile

test-thorough: $(venv)  ## run all tests but the slow ones (a quarter of an hour)
	.venv/bin/python -m pytest -n 2 --dist loadfile -m "not slow"

test-trainings: $(venv)  ## train many kinds of networks, and each kind of config that ships (ten minutes)
	.venv/bin/python -m pytest -n 2 -m "slow or not slow" --timeout 900 \
	    tests/runtime/graph/test_networks.py tests/config/test_shipped_configs.py

# A process that traced hundreds of computations keeps 10 GB, so each folder has processes of its own.
test-all: $(venv)  ## run all tests, those marked slow as well (hours)
	@failed=; for part in tests/[a-z]*/ "tests/test_*.py"; do \
	    printf '\n=== %s\n' "$$part"; \
	    .venv/bin/python -m pytest -n 2 --dist loadfile -m "slow or not slow" --timeout 900 $$part \
	        || failed="$$failed $$part"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

fuzz: $(venv)  ## vectorize thousands of cases of client work, each against one client at a time
	.venv/bin/python -m pytest -n 2 -m "slow or not slow" --timeout 900 tests/runtime/graph/fuzz

faults: $(venv)  ## kill, starve and damage training runs (ten minutes)
	.venv/bin/python -m tests.faults

lint: $(venv)  ## check style, format and type hints
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/ruff format --check --line-length 80 $$(git ls-files "*.md")
	.venv/bin/mypy

results: $(venv)  ## write tables and pictures of docs/results from their numbers, and docs/keys.md
	.venv/bin/python -m docs.results.make
	.venv/bin/python -m docs.keys

notebook: $(patsubst examples/%.py,runs/%.ipynb,$(wildcard examples/notebooks/*.py))  ## make the tutorials as notebooks in runs/notebooks/, and say how to open them
	@echo "runs/notebooks/ has the tutorials; those that were there before are as you left them."
	@echo "VS Code: open one, and choose .venv/bin/python as its kernel."
	@echo "Jupyter: register this environment once, start Jupyter, and choose the kernel tff_pfl:"
	@echo "    .venv/bin/python -m ipykernel install --user --name tff_pfl"
	@echo "    uvx --from jupyterlab jupyter-lab runs/notebooks    # or your own Jupyter"

runs/notebooks/%.ipynb: | $(venv)
	@mkdir -p $(@D)
	@.venv/bin/jupytext --quiet --to ipynb --output $@ examples/$(@:runs/%.ipynb=%.py)

mkdocs = NO_MKDOCS_2_WARNING=1 TF_CPP_MIN_LOG_LEVEL=3 .venv/bin/python -m mkdocs

docs: $(venv)  ## build the site into site/, with its notebooks executed (twelve minutes)
	$(mkdocs) build

docs-fast: $(venv)  ## build the site without executing notebooks (a minute)
	EXECUTE_NOTEBOOKS=false $(mkdocs) build

# Playwright drives the Chromium of the system, and is no requirement of the library.
test-site: docs-fast  ## look at the site in a browser: widths, tables, code, searches (two minutes)
	uv=$$(sh requirements/find_uv.sh) && $$uv run --quiet --no-project --python 3.11 \
	    --with playwright==1.49.1 --with pytest==8.3.4 \
	    python -m pytest -c /dev/null -p no:cacheprovider -q docs/site/in_browser.py

docs-serve: $(venv)  ## show the site on this machine while you write, without executing notebooks
	EXECUTE_NOTEBOOKS=false $(mkdocs) serve --dev-addr=127.0.0.1:8000

venv: $(venv)  ## make .venv from the locked list, if that has changed

gpu: $(gpu)  ## add to .venv what TensorFlow needs for a GPU: CUDA and cuDNN

lock:  ## resolve the direct dependencies into the locked lists
	uv=$$(sh requirements/find_uv.sh) && \
	    $(call resolve,direct,lock) --override requirements/overrides.txt && \
	    $(call resolve,gpu,gpu.lock)

clean:  ## remove .venv and caches, never a run's results
	rm -rf .venv .venv-tools .pytest_cache .ruff_cache .mypy_cache build *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +

# A failed installation leaves no stamp, a changed list or script installs again.
$(venv): | own-venv
	@PYTHON="$(PYTHON)" sh requirements/make_venv.sh
	@touch $@

own-venv:
	@sh requirements/own_venv.sh

# Whatever makes .venv anew removes this stamp with what it stands for.
$(gpu): $(venv)
	@echo "Installing CUDA 11.8 and cuDNN 8.7 into .venv (1.9 GB to download, 3.4 GB on disk)."
	@rm -f .venv/gpu-installed-*
	@.venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps \
	    --require-hashes -r requirements/gpu.lock.txt
	@touch $@
