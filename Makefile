# Two main commands: `make demo` and `make test`. All their downloads and outputs go into target/
# and .venv/. Requires Rust (rustup), python3 >= 3.11 with venv, and a C compiler; nasm is fetched
# if it is missing and apt-get exists.

PYTHON ?= python3
VENV := .venv
CARGO ?= cargo
NEXTEST := $(shell $(CARGO) nextest --version >/dev/null 2>&1 && echo yes)
UV := VIRTUAL_ENV=$(CURDIR)/$(VENV) $(VENV)/bin/uv pip install --quiet
HAS_CARGO := command -v $(CARGO) >/dev/null || { echo "error: cargo is missing; install Rust from https://rustup.rs" >&2; exit 1; }
# Tests use the dev profile, which the Rust tests have already compiled.
DEV_PACKAGE := target/debug/python/shardfeed
ON_DEV := PYTHONPATH=$(CURDIR)/target/debug/python SHARDFEED_BINARY=$(CURDIR)/target/debug/shardfeed

.PHONY: help build wheel test fuzz demo failover failover-dynamic failover-doubt chaos chaos-bugs gate dev bench bench-peers check-rust check-python check-kernels test-kills nasm test-frameworks test-pythons test-deploy test-deploy-systemd test-deploy-docker test-deploy-slurm \
  test-deploy-kubernetes test-deploy-monitoring clean

help:
	@echo "make build   the command (target/release/shardfeed) and the Python package (.venv); JPEG_SIMD=off: without nasm"
	@echo "make wheel   one wheel with both, for other hosts: target/wheels"
	@echo "make demo    a cluster on this host: trains on two ranks, kills its processes, counts every record"
	@echo "make test    formatting, lints and all tests"
	@echo "make test-frameworks   PyTorch, Lightning, Accelerate, Trainer, JAX and TensorFlow, in separate environments (8 GB in target/frameworks)"
	@echo "make test-deploy   systemd units, images, Slurm scripts and manifests, run on real systems; as root, see deploy/README.md"
	@echo "make test-kills   a hundred SIGKILLs of workers and of trainers, and the resources that they leave: KILLS=100"
	@echo "make check-kernels   GPU kernels, assembled by NVIDIA's ptxas, which is fetched (into target/ptxas)"
	@echo "make test-pythons   the Python tests under other interpreters: PYTHONS=\"python3.12 python3.13\""
	@echo "make failover   ten faults in a training on three coordinators, and a count; two to four minutes. PROGRAM=filter: another fault while samples are counted"
	@echo "make failover-dynamic   the failures in which tf.data service loses data, beside its numbers"
	@echo "make failover-doubt   faults that leave samples in doubt, with hosts that are cut off, and a count: CASES=gone-1,cut-host TTL_MS=1500,4000 RUNS=3 LEADER=1"
	@echo "make fuzz    hostile input: SECONDS=600 of processor time for each of TARGETS; new inputs go to fuzz/corpus"
	@echo "make bench   measurements, see docs/BENCHMARKS.md; its last part, beside tf.data and others: make bench-peers"
	@echo "make chaos   simulated clusters under faults: SEEDS=100 START=0; PATCH=FILE.diff tries a change"
	@echo "make chaos-bugs   deliberate bugs, each of which the simulation must find"
	@echo "make gate    simulation, deliberate bugs, faults and fuzzing, longer while GATE_SECONDS=1200 last"

# libjpeg-turbo is compiled by cmake, from .venv, and nasm; worker/image/cmake.sh finds both for
# every cargo.
build dev demo check-rust fuzz chaos chaos-bugs gate: $(VENV)/.installed nasm
ifeq ($(JPEG_SIMD),off)
export JPEG_SIMD
# turbojpeg-sys treats this like an unset variable, but builds again when it changes.
export TURBOJPEG_SOURCE := vendor
endif

nasm:
	@worker/image/nasm.sh --fetch >/dev/null

# Packages for building and the demo; the next target adds those of the tests.
$(VENV)/.installed: python/requirements.txt
	@$(PYTHON) -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: $(PYTHON) must be Python 3.11 or later with venv (Debian: apt install python3-venv)" >&2; exit 1; }
	@echo "installing Python packages into $(VENV)"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@test -x $(VENV)/bin/uv || $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check uv
	@$(UV) -r $<
	@echo $(CURDIR)/python/python > $$($(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shardfeed.pth
	@touch $@

$(VENV)/.installed-dev: python/requirements-dev.txt $(VENV)/.installed
	@echo "installing Python packages for tests into $(VENV)"
	@$(UV) -r $<
	@touch $@

# Command and module in one invocation, so that their dependencies are compiled once.
build: $(VENV)/.installed
	@$(HAS_CARGO)
	$(CARGO) build --release --locked -p shardfeed -p shardfeed-python
	cp target/release/lib_native.so python/python/shardfeed/_native.abi3.so

# Libraries, commands and tests in the dev profile, for tests, simulation and fuzzer. Clippy checks
# benches and examples. Python tests get a package of links with the module of this profile, so that
# the package of `make build` does not change.
dev: $(VENV)/.installed-dev
	@$(HAS_CARGO)
	$(CARGO) build --workspace --lib --bins --tests --locked
	@rm -rf $(DEV_PACKAGE) && mkdir -p $(DEV_PACKAGE)
	@ln -s $(CURDIR)/python/python/shardfeed/[!_]* $(CURDIR)/python/python/shardfeed/__init__.py $(CURDIR)/python/python/shardfeed/_native.pyi $(DEV_PACKAGE)/
	@cp target/debug/lib_native.so $(DEV_PACKAGE)/_native.abi3.so

# One wheel with the package and the command, tested in a separate environment; the output is in
# target/wheels.
wheel: build $(VENV)/.installed-dev
	rm -rf target/wheels-plain
	$(VENV)/bin/maturin build --release --locked --quiet -m python/Cargo.toml --out target/wheels-plain
	$(VENV)/bin/python python/make_wheel.py target/wheels-plain/*.whl target/release/shardfeed

# On the dev build, which `make test` and `make gate` compile anyway.
demo: dev
	$(ON_DEV) $(VENV)/bin/python examples/digits/demo.py $(if $(LEDGER),--ledger $(LEDGER)) $(if $(SEED),--seed $(SEED))

failover: build
	$(VENV)/bin/python chaos/failover.py $(if $(PROGRAM),--program $(PROGRAM)) $(if $(LEDGER),--ledger $(LEDGER)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(FAULTS),--faults $(FAULTS)) $(if $(COORDINATORS),--coordinators $(COORDINATORS))

failover-dynamic: build
	$(VENV)/bin/python chaos/dynamic_failures.py $(if $(MODE),--mode $(MODE)) $(if $(CASES),--cases $(CASES)) \
	  $(if $(RECORDS),--records $(RECORDS))

failover-doubt: build
	$(VENV)/bin/python chaos/in_doubt.py $(if $(CASES),--cases $(CASES)) $(if $(TTL_MS),--ttl-ms $(TTL_MS)) \
	  $(if $(RUNS),--seeds $(RUNS)) $(if $(LEADER),--leader)

test: check-rust check-python

# Tests wait more than they compute, so more threads than cores save time.
RUST_TEST_THREADS ?= $(shell expr $$(nproc) + 1)

check-rust: dev
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
# The embedded loader builds without the crates above it, also in their features.
	$(CARGO) clippy -p shardfeed-embedded -p shardfeed-client --all-targets --locked -- -D warnings
ifeq ($(NEXTEST),yes)
	$(CARGO) nextest run --workspace --lib --bins --tests --locked --no-fail-fast --test-threads $(RUST_TEST_THREADS)
else
	$(CARGO) test --workspace --locked --no-fail-fast
endif

# The tests of one file run in one process, as they share clusters. 0: one test after the other.
PYTEST_PROCESSES ?= 2

check-python: dev
	$(VENV)/bin/python -m mypy --config-file python/pyproject.toml python/python/shardfeed
	for folder in examples/*/; do \
	  MYPYPATH=tests $(VENV)/bin/python -m mypy --config-file python/pyproject.toml $$folder || exit 1; done
	$(VENV)/bin/basedpyright --pythonpath $(VENV)/bin/python -p examples
	cd python && $(ON_DEV) ../$(VENV)/bin/python -m mypy.stubtest shardfeed._native --mypy-config-file pyproject.toml \
	  --ignore-disjoint-bases --allowlist stubtest_allowed.txt --ignore-unused-allowlist
	cd python && $(ON_DEV) ../$(VENV)/bin/python -m pytest -m "not alone" -n $(PYTEST_PROCESSES) --dist loadfile
	cd python && $(ON_DEV) ../$(VENV)/bin/python -m pytest -m alone
	$(ON_DEV) $(VENV)/bin/python -m pytest -c python/pyproject.toml --rootdir deploy/tests deploy/tests/test_config.py

# The debug build, which is slightly optimized: overflows and failed assertions are reported.
SECONDS ?= 600

fuzz:
	$(CARGO) run --quiet --locked -p shardfeed-fuzz -- --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(TARGETS)

KILLS ?= 100

test-kills: build $(VENV)/.installed-dev
	cd python && SHARDFEED_KILLS=$(KILLS) ../$(VENV)/bin/python -m pytest -o faulthandler_timeout=3600 tests/test_kills.py

# The assemblers of the oldest supported CUDA and of recent ones, each with the GPU architectures
# that it supports.
KERNELS := worker/device/kernels
PTXAS := nvidia-cuda-nvcc-cu12==12.0.140:70,75,80,86,89,90 nvidia-cuda-nvcc-cu12==12.9.86:70,75,80,86,89,90,100,120 \
  nvidia-cuda-nvcc==13.0.88:75,80,86,89,90,100,120

check-kernels: $(VENV)/.installed-dev
	$(VENV)/bin/python $(KERNELS)/make.py --check
	@set -e; for each in $(PTXAS); do \
	  package=$${each%%:*}; folder=target/ptxas/$$package; \
	  test -d $$folder || $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target $$folder $$package; \
	  for kind in $$(echo $${each##*:} | tr , ' '); do \
	    $$folder/nvidia/*/bin/ptxas --warning-as-error -arch=sm_$$kind -o target/ptxas/kernels-$$kind.cubin $(KERNELS)/kernels.ptx; \
	    echo "$$package: kernels.ptx assembles for sm_$$kind"; done; done

# FRAMEWORKS="torch" runs only that one.
test-frameworks: build $(VENV)/.installed-dev
	$(VENV)/bin/python python/tests/frameworks/run.py target/frameworks $(FRAMEWORKS)

# Requires root: the tests create machines, networks and containers, and remove them. Each part is
# also a target.
test-deploy: test-deploy-kubernetes test-deploy-monitoring test-deploy-systemd test-deploy-docker test-deploy-slurm

DEPLOY_TEST = $(VENV)/bin/python -m pytest -o faulthandler_timeout=3600 -c python/pyproject.toml --rootdir deploy/tests

test-deploy-systemd: build $(VENV)/.installed-dev
	$(DEPLOY_TEST) deploy/tests/test_systemd.py

test-deploy-docker: build $(VENV)/.installed-dev
	$(DEPLOY_TEST) deploy/tests/test_docker.py

test-deploy-monitoring: build $(VENV)/.installed-dev
	$(DEPLOY_TEST) deploy/tests/test_monitoring.py

test-deploy-slurm: build $(VENV)/.installed-dev
	$(DEPLOY_TEST) deploy/tests/test_slurm.py

test-deploy-kubernetes: build $(VENV)/.installed-dev
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r deploy/tests/requirements.txt
	MYPYPATH=examples/digits:tests:python/tests/frameworks $(VENV)/bin/python -m mypy --config-file python/pyproject.toml deploy/tests
	$(DEPLOY_TEST) deploy/tests/test_kubernetes.py deploy/tests/test_pods.py

# The extension module of `build` uses the stable ABI, so each interpreter loads the same file.
# PYTEST="-k ranks" runs a part of the tests.
PYTHONS ?= python3.12 python3.13

test-pythons: build $(VENV)/.installed-dev
	@set -e; for python in $(PYTHONS); do \
	  version=$$($$python -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])') || { \
	    echo "error: $$python is missing; name others with PYTHONS=" >&2; exit 1; }; \
	  home=$(CURDIR)/target/pythons/$$version; \
	  cat python/requirements.txt python/requirements-dev.txt | cmp -s - $$home/.installed || { \
	    echo "installing Python tools into $$home"; \
	    $$python -m venv --clear $$home; \
	    $$home/bin/python -m pip install --quiet --disable-pip-version-check -r python/requirements.txt -r python/requirements-dev.txt; \
	    echo $(CURDIR)/python/python > $$($$home/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shardfeed.pth; \
	    cat python/requirements.txt python/requirements-dev.txt > $$home/.installed; }; \
	  echo "Python $$version"; \
	  (cd python && $$home/bin/python -m pytest -p no:cacheprovider $(PYTEST)); \
	done

bench: build
	$(CARGO) bench --locked -p shardfeed-bench
	$(VENV)/bin/python bench/loader.py
	$(VENV)/bin/python bench/in_cluster.py
	$(MAKE) bench-peers

# Comparison with tf.data and other loaders. Uses photographs and another harness from folders
# beside this checkout, if they exist.
PEERS := target/bench-peers
PHOTOS ?= $(wildcard ../shared/data/photos)
LAB ?= $(wildcard ../shared/labs/peers)

bench-peers: build
	$(CARGO) build --release --locked -p shardfeed-bench --example floor
	$(VENV)/bin/python bench/peers/run.py --home $(PEERS) $(if $(PHOTOS),--photos $(PHOTOS)) $(PEERS_OPTIONS); status=$$?; \
	$(if $(LAB),$(VENV)/bin/python bench/peers/lab.py $(LAB) --home $(PEERS);) \
	python=$$($(VENV)/bin/python bench/peers/venvs.py $(PEERS) plots) && \
	$$python bench/peers/report.py $(PEERS)/results.json --svg $(PEERS)/peers.svg > $(PEERS)/peers.md && \
	cat $(PEERS)/peers.md && exit $$status

SEEDS ?= 100
START ?= 0

chaos:
ifdef PATCH
	command=$$(CARGO=$(CARGO) chaos/patched.sh $(PATCH)) && SHARDFEED_CHAOS_PATCH=$(PATCH) $$command run --seeds $(SEEDS) --start $(START)
else
	$(CARGO) build --quiet --locked --workspace --bin shardfeed-chaos --test determinism
	target/debug/shardfeed-chaos run --seeds $(SEEDS) --start $(START) $(if $(TWICE),--twice)
endif

# Every deliberate bug must be found; ONLY="two-generations stale-reads" tries only these.
chaos-bugs: dev
	$(ON_DEV) CARGO=$(CARGO) $(VENV)/bin/python chaos/gate.py bugs $(ONLY)

# The checkers that run longer than tests: the minimum of each always runs, longer runs follow while
# GATE_SECONDS last.
GATE_SECONDS ?= 1200

gate: dev
	$(ON_DEV) CARGO=$(CARGO) $(VENV)/bin/python chaos/gate.py --seconds $(GATE_SECONDS) --start $(START)

clean:
	rm -rf target $(VENV) .demo
