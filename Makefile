# The companion's commands; `make help` lists them.
# Variables: PROFILE (smoke, laptop, full, paper), VENV, PYTHON, PORT, CORES, NOTEBOOK.

PYTHON  ?= python3
PROFILE ?= laptop
PORT    ?= 8000
PIP_FLAGS ?= -q
# notebooks that `make notebooks` refreshes, by name; empty means all
NOTEBOOK ?=

# Inside the conda environment of environment.yml everything happens there, elsewhere in .venv.
ifeq ($(CONDA_DEFAULT_ENV),loca-sae)
VENV ?= $(CONDA_PREFIX)
endif
VENV ?= .venv

BIN   := $(VENV)/bin
RUN   := $(BIN)/python
STAMP := $(VENV)/.loca-sae-installed

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# threads that wait without spinning: as fast on a quiet machine, several times faster on a busy one
export OMP_WAIT_POLICY ?= PASSIVE
# scikit-learn's many small fits: three times faster without a pool of BLAS threads
export OPENBLAS_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help env book site notebooks test check bench serve clean

help: ## list these targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(STAMP) ## set up the environment (.venv) from the exact pins; does nothing when it is there

# One stamp for the whole installation. tools/install.sh says what it does.
$(STAMP): requirements.lock models.lock pyproject.toml tools/install.sh
	@PIP_FLAGS='$(PIP_FLAGS)' sh tools/install.sh '$(VENV)' '$(PYTHON)' '$(STAMP)'

book: env ## execute the notebooks (PROFILE=laptop), as far as something changed, and render the site
	$(RUN) -m tools.book $(PROFILE)
	@$(MAKE) --no-print-directory site

site: env ## render the executed notebooks in book/ as they are; computes nothing
	$(BIN)/jupyter-book build . -W -n --keep-going --all
	@echo "The site is in _build/html; 'make serve' shows it."

notebooks: env ## execute the sources with their default (smoke) parameters and keep the outputs in them
	$(RUN) -m tools.run_notebook refresh $(NOTEBOOK)

test: env check ## check, then run the tests, then compare the notebooks with their committed outputs
	$(RUN) -m pytest tests --durations=15
	$(RUN) -m pytest --nbval --nbval-current-env --nbval-cell-timeout=600 --durations=10 notebooks

check: env ## lint, types, import order
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(RUN) -m pytest -q tests/test_layers.py

bench: env ## time the exact solver beside other solvers (about 10 minutes; BENCH_FRESH=1 measures anew)
	$(RUN) -m benchmarks

serve: env ## serve the built site on this computer only (PORT=8000)
	@test -f _build/html/index.html || { echo "There is no site yet: run 'make book' or 'make site' first." >&2; exit 1; }
	$(RUN) -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

clean: ## remove what was built (site, executed notebooks, logs); environment and store stay
	rm -rf _build .snakemake build dist lib/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@echo "Kept: $(VENV) (remove it with 'rm -rf $(VENV)'), and the store of models, activations and SAEs"
	@echo "(look with '$(RUN) -m loca_sae.store ls', empty with '$(RUN) -m loca_sae.store rm --all')."
