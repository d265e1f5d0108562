# Both `make demo` and `make test` set everything up by themselves; a second run re-uses it.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests wait for brokers half of the time: two processes, each with a broker of its own, file by file
# in the order of the tree. TEST_ARGS="-n 0" runs them in one.
# A process that dies ends the run: xdist would wait for the rest of its file for ever.
SIDE_BY_SIDE := -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0
# Two tiers, see tests/README.md. The second runs properties again, with all their examples.
QUICK := --hypothesis-profile quick -m "not thorough and not agents and not index"
REST := -m "(thorough or hypothesis) and not agents and not index"
# Agents pin either major of openai: the clients of agents that pin the older one live apart.
CLIENTS := $(VENV)/clients
CLIENTS_STAMP := $(CLIENTS)/.installed
# vLLM pins its own torch: the workers that serve by it have an environment of their own, 6.1 GB.
VLLM := $(VENV)/vllm
VLLM_STAMP := $(VLLM)/.installed
# Tests start processes by the hundred; without compiled files each would compile what it imports.
export PYTHONDONTWRITEBYTECODE :=
# The releases that all this was last seen green with; `pip install` without it takes the newest.
LOCK := compose/python.lock
EXTRAS := models,training,pretrained,lora,environments,boxes,docker,openenv,embedded,archive,tasks,plots,dev
# One line for each step of the installation; its output is shown if it fails.
STEP := $(PYTHON) compose/make_step.py
# pip compiles one file after the other: that is left to all cores, below.
PIP_INSTALL := -m pip --disable-pip-version-check install --no-compile --progress-bar off
# Some packages hold files that do not compile. Nothing imports them, so that is no failure.
COMPILE := -W ignore -m compileall -qq -j 0
INSTALL = $(BIN)/python $(PIP_INSTALL) --upgrade-strategy only-if-needed -c $(LOCK) -e ".[$(EXTRAS)]"

.PHONY: bench-learning demo test test-all agents tasks vllm bench chaos lint clean clients

demo: $(STAMP)
	$(BIN)/rollcall demo $(DEMO_ARGS)

test: $(STAMP)
	$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint clients
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(QUICK) $(TEST_ARGS)

# The tests that `make test` leaves out.
test-all: $(STAMP) clients
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(REST) $(TEST_ARGS)

# Agents of others, for real: 700 MB from the package index, and the tests that play them.
agents: $(STAMP)
	$(BIN)/rollcall agents install mini-swe-agent openai-agents smolagents
	$(BIN)/python -m pytest -m agents $(TEST_ARGS)

# A task of two real releases, fetched from the package index.
tasks: $(STAMP)
	$(BIN)/python -m pytest -m index $(TEST_ARGS)

# The engine that is vLLM, by its Python; then, by ours, what is beside it: workers and clients of its
# server. `make test` leaves these cases out, and says so.
vllm: $(STAMP) $(VLLM_STAMP)
	REQUIRED_ENGINES=vllm $(VLLM)/bin/python -m pytest -W ignore --timeout 600 -m vllm \
		tests/inference/test_engine_contract.py tests/inference/test_vllm_engine.py \
		tests/inference/test_vllm_weights.py $(TEST_ARGS)
	REQUIRED_ENGINES=vllm $(BIN)/python -m pytest -m vllm \
		tests/inference/test_vllm_server.py tests/flow/test_vllm_steps.py $(TEST_ARGS)

bench: $(STAMP)
	$(BIN)/rollcall bench $(BENCH_ARGS)

bench-learning: $(STAMP)
	$(BIN)/rollcall bench learning --seeds 20 --memory $(BENCH_ARGS)

chaos: $(STAMP)
	ROLLCALL_SCHEDULES=2400 $(BIN)/python -m pytest -q tests/flow/test_memory_flow.py -k whatever_dies
	$(BIN)/rollcall chaos --minutes 10 $(CHAOS_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p rollcall
	$(BIN)/lint-imports
	$(BIN)/python -m tests.support.plain_words 2

# The codec is compiled on the way; where even a compiler cannot be had, it stays plain Python.
$(STAMP): pyproject.toml $(LOCK) $(wildcard schemas/avro/*.avsc schemas/avro_*.py*)
	@test -x $(BIN)/python || $(STEP) "environment $(VENV)" $(PYTHON) -m venv $(VENV)
	@$(STEP) "packages of $(LOCK)" sh -c '$(INSTALL) || CODEC=plain $(INSTALL)'
	@$(STEP) "byte code" sh -c '$(BIN)/python $(COMPILE) $(VENV)/lib || true'
	@touch $@

clients: $(CLIENTS_STAMP)

$(CLIENTS_STAMP): tests/support/older_clients.txt
	@test -x $(CLIENTS)/bin/python || $(STEP) "environment $(CLIENTS)" $(PYTHON) -m venv $(CLIENTS)
	@$(STEP) "packages of $<" $(CLIENTS)/bin/python $(PIP_INSTALL) -r $<
	@$(STEP) "byte code" sh -c '$(CLIENTS)/bin/python $(COMPILE) $(CLIENTS)/lib || true'
	@touch $@

$(VLLM_STAMP): inference/vllm.lock pyproject.toml
	@test -x $(VLLM)/bin/python || $(STEP) "environment $(VLLM)" $(PYTHON) -m venv $(VLLM)
	@$(STEP) "packages of $<" $(VLLM)/bin/python $(PIP_INSTALL) --no-deps -r $<
	@CODEC=plain $(STEP) "rollcall itself" $(VLLM)/bin/python $(PIP_INSTALL) --no-deps -e .
	@$(STEP) "byte code" sh -c '$(VLLM)/bin/python $(COMPILE) $(VLLM)/lib || true'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis schemas/*.so
