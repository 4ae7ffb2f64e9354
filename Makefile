# Two commands are all a newcomer needs: `make demo` and `make test`. Each makes .venv on its first call and installs
# nothing on the next, until pyproject.toml changes.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
MINT   ?= .venv-mint
JOBS   ?= 2
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test test-sanitize test-mint test-perf test-packaging test-docs test-isolation test-pages docs lint bench bench-judgement bench-gate bench-gate-real catalogue bench-catalogue bench-culprits bench-isolation fuzz clean help

help:
	@echo "make demo   run the examples on the emulated NPU, then each API that a recorded MiniLM calls, then time some"
	@echo "make test   run the tests with coverage"
	@echo "make test-mint  run mindspore.mint on MindSpore's CPU kernels against torch, in $(MINT)"
	@echo "make test-perf  time real processes against a commit, with a planted slowdown"
	@echo "make test-packaging  build wheel and source distribution, install and use them in clean environments; run the gate"
	@echo "make test-pages  open the page of --ascend-html in the machine's own Chromium"
	@echo "make test-docs  run every command that README and documentation show"
	@echo "make docs   make the documentation's pages in site/"
	@echo "make test-sanitize  the slow tests of --ascend-sanitize, then all of torch's APIs under it"
	@echo "make lint   ruff, mypy --strict, and actionlint on the workflows"
	@echo "make bench  print the speed of the emulated device, the comparison and the plugin"
	@echo "make bench-judgement  print how often each criterion blames right results and lets planted faults pass"
	@echo "make bench-gate  print how often the performance gate raises a false alarm and what it finds, in simulated noise"
	@echo "make bench-gate-real  the same for --ascend-ab on this machine, in real processes; it takes hours"
	@echo "make fuzz   read 5,000 broken dumps and 2,000 broken profiles, and kill a process that saves baselines 200 times"
	@echo "make catalogue  compare all of torch's APIs on the emulated NPU"
	@echo "make bench-catalogue  plant faults in 42 operators: does the catalogue find them, do the files it leaves fail alone?"
	@echo "make bench-culprits  plant faults in 40 kernels below four models: are operator, layer and pass named?"
	@echo "make test-isolation  crashes, hangs and cards that fail, in real processes"
	@echo "make bench-isolation  20 disasters among 200 tests in supervised processes; two workers against one"
	@echo "PYTHON=$(PYTHON) makes the environment in $(VENV)"

demo: $(VENV)/.demo
	$(BIN)/python -m pytest --ascend-compare examples
	rm -rf .ascend/minilm
	$(BIN)/python examples/minilm/record_minilm.py .ascend/minilm
	$(BIN)/python -m pytest --ascend-compare .ascend/minilm
	@echo "timings, old -> new; a busy machine is slower too, so that a regression here doesn't stop make:"
	-$(BIN)/python -m pytest --ascend-compare --ascend-perf=3 --ascend-fail=perf:100% \
		examples/apis/test_timing.py examples/minilm/test_minilm.py::test_latency

test: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --cov --cov-fail-under=90 tests

# MindSpore wants numpy < 2 and Python 3.10 to 3.12, and takes 2.5 GB: an environment of its own.
test-mint:
	$(MAKE) $(MINT)/.mint VENV=$(MINT)
	OMP_NUM_THREADS=1 $(MINT)/bin/python -m pytest -rs tests/mint

# Takes longer than a change should wait for.
test-perf: $(VENV)/.test
	OMP_NUM_THREADS=1 ASCEND_WHOLE=1 ASCEND_TIMINGS=1 $(BIN)/python -m pytest tests/plugin/test_perf_real.py

test-packaging: $(VENV)/.demo $(VENV)/.packaging
	OMP_NUM_THREADS=1 ASCEND_PACKAGING=1 $(BIN)/python -m pytest tests/packaging

test-docs: $(VENV)/.test
	OMP_NUM_THREADS=1 ASCEND_DOCS=1 $(BIN)/python -m pytest tests/docs

# Skipped with a word where this machine has no Chromium (apt install chromium).
test-pages: $(VENV)/.pages
	OMP_NUM_THREADS=1 ASCEND_PAGES=1 $(BIN)/python -m pytest -rs tests/pages

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The slow part: hangs under the sanitizer, workers, and all of torch's APIs on memory that watches itself.
test-sanitize: $(VENV)/.test
	OMP_NUM_THREADS=1 ASCEND_SANITIZE=1 $(BIN)/python -m pytest tests/plugin/test_sanitize_option.py tests/plugin/test_sanitize_faults.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --ascend-compare=emulated --ascend-api 'torch.*' --ascend-dtypes float32 \
		--ascend-sanitize=memcheck,initcheck -n $(JOBS)

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/actionlint

bench: $(VENV)/.test
	set -e; for script in $(filter-out benchmarks/gate.py benchmarks/gate_real.py,$(wildcard benchmarks/*.py)); do $(BIN)/python $$script; done

bench-judgement: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/judgement/measure.py --jobs $(JOBS) --json judgement.json \
		--check benchmarks/judgement/baseline.json

# Hours, with the numbers as they are: the numbers of bench-gate in real processes.
bench-gate-real: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/gate_real.py

bench-gate: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/gate.py --jobs $(JOBS)

fuzz: $(VENV)/.test
	OMP_NUM_THREADS=1 ASCEND_FUZZ=5000 ASCEND_KILLS=200 $(BIN)/python -m pytest tests/dumps/test_fuzz.py tests/dumps/test_fuzz_arrays.py tests/perf/test_store.py
	ASCEND_FUZZ=2000 $(BIN)/python -m pytest tests/perf/test_fuzz_profiles.py
	ASCEND_FUZZ=20000 $(BIN)/python -m pytest tests/health/test_sanitizer_log.py

catalogue: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --ascend-compare=emulated --ascend-api 'torch.*' \
		--ascend-dtypes float32,float16,bfloat16 -n $(JOBS)

bench-catalogue: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/catalogue/faults.py

bench-culprits: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/culprits/faults.py

test-isolation: $(VENV)/.test
	OMP_NUM_THREADS=1 ASCEND_DISASTERS=1 $(BIN)/python -m pytest tests/run

# Nobody else may use the machine's two cores meanwhile.
bench-isolation: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/isolation/disasters.py
	$(BIN)/python benchmarks/isolation/workers.py

clean:
	rm -rf $(VENV) $(MINT) site

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "pytest-ascend needs Python 3.10 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "the venv module is missing: install python3-venv" >&2; exit 1; }

$(VENV)/.demo $(VENV)/.test $(VENV)/.lint $(VENV)/.mint $(VENV)/.packaging $(VENV)/.docs $(VENV)/.pages: $(VENV)/.%: pyproject.toml | $(BIN)/python
	$(PIP) install --quiet --editable '.[$*]'
	touch $@
