# The set-up and the daily commands. `make help` lists them.

PYTHON ?=
venv := .venv/installed

.PHONY: help quickstart test lint lock venv clean
.DEFAULT_GOAL := help

help:  ## list these targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

quickstart: $(venv)  ## train and evaluate a personalized federation on handwritten digits
	.venv/bin/python programs/train.py --config=configs/digits.py:ditto \
	    --output_dir=runs/quickstart --resume

test: $(venv)  ## run the tests, without those marked slow
	.venv/bin/python -m pytest -n 2

lint: $(venv)  ## check style and format
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

venv: $(venv)  ## make .venv from the locked list, if that has changed

lock:  ## resolve the direct dependencies into the locked list
	uv=$$(sh requirements/find_uv.sh) && $$uv pip compile requirements/direct.in \
	    --override requirements/overrides.txt --python-version 3.11 \
	    --python-platform x86_64-manylinux_2_31 --generate-hashes --no-emit-index-url \
	    --no-emit-find-links --custom-compile-command "make lock" --quiet \
	    --output-file requirements/lock.txt

clean:  ## remove .venv and caches, never a run's results
	rm -rf .venv .venv-tools .pytest_cache .ruff_cache build *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +

# A failed installation leaves no stamp, a changed list or script installs again.
$(venv): requirements/lock.txt requirements/make_venv.sh setup.py
	@PYTHON="$(PYTHON)" sh requirements/make_venv.sh
	@touch $@
