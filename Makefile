# Two commands: `make demo` and `make test`. Everything they need goes into target/ and .venv/.
# Needs: Rust (rustup), python3 >= 3.11 with venv, a C compiler.

PYTHON ?= python3
VENV := .venv
CARGO ?= cargo
NEXTEST := $(shell $(CARGO) nextest --version >/dev/null 2>&1 && echo yes)

.PHONY: help build wheel test fuzz demo failover failover-dynamic chaos chaos-test chaos-bugs bench bench-peers check-rust check-python check-kernels test-kills test-turbojpeg test-frameworks test-pythons test-deploy test-deploy-systemd test-deploy-docker test-deploy-slurm \
  test-deploy-kubernetes test-deploy-monitoring clean

help:
	@echo "make build   the command (target/release/shardfeed) and the Python package (.venv)"
	@echo "make wheel   one wheel with both, for other hosts: target/wheels"
	@echo "make demo    a cluster on this host: trains on two ranks, kills what it can, counts every record"
	@echo "make test    formatting, lints and all tests"
	@echo "make test-turbojpeg   the second JPEG decoder; needs cmake and nasm, too"
	@echo "make test-frameworks   PyTorch, Lightning, Accelerate, Trainer, JAX and TensorFlow, in environments of their own (8 GB in target/frameworks)"
	@echo "make test-deploy   systemd units, images, Slurm scripts and manifests, each tried for real; as root, see deploy/README.md"
	@echo "make test-kills   a hundred SIGKILLs of workers and of trainers, and what the other side is left with: KILLS=100"
	@echo "make check-kernels   what runs on GPUs, assembled by NVIDIA's ptxas, which is fetched (into target/ptxas)"
	@echo "make test-pythons   the Python tests under other interpreters: PYTHONS=\"python3.12 python3.13\""
	@echo "make failover   ten faults in a training on three coordinators, and a count; two to four minutes"
	@echo "make failover-dynamic   the failures that sink tf.data service, beside its numbers"
	@echo "make fuzz    hostile input: SECONDS=600 of processor time for each of TARGETS; finds go to fuzz/corpus"
	@echo "make bench   measurements, see docs/BENCHMARKS.md; its last part, beside tf.data and others: make bench-peers"
	@echo "make chaos   simulated clusters under faults: SEEDS=100 START=0; PATCH=FILE.diff tries a change"

$(VENV)/.installed: python/requirements-dev.txt
	@$(PYTHON) -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: $(PYTHON) must be Python 3.11 or later with venv (Debian: apt install python3-venv)" >&2; exit 1; }
	@echo "installing Python tools into $(VENV)"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

build: $(VENV)/.installed
	@command -v $(CARGO) >/dev/null || { echo "error: cargo is missing; install Rust from https://rustup.rs" >&2; exit 1; }
	$(CARGO) build --release --locked -p shardfeed
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(VENV)/bin/maturin develop --release --locked --quiet -m python/Cargo.toml

# One wheel with the package and the command, tried in an environment of its own; it ends in target/wheels.
wheel: build
	rm -rf target/wheels-plain
	$(VENV)/bin/maturin build --release --locked --quiet -m python/Cargo.toml --out target/wheels-plain
	$(VENV)/bin/python python/make_wheel.py target/wheels-plain/*.whl target/release/shardfeed

demo: build
	$(VENV)/bin/python examples/digits/demo.py $(if $(LEDGER),--ledger $(LEDGER)) $(if $(SEED),--seed $(SEED))

failover: build
	$(VENV)/bin/python chaos/failover.py $(if $(LEDGER),--ledger $(LEDGER)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(FAULTS),--faults $(FAULTS)) $(if $(COORDINATORS),--coordinators $(COORDINATORS))

failover-dynamic: build
	$(VENV)/bin/python chaos/dynamic_failures.py $(if $(MODE),--mode $(MODE)) $(if $(CASES),--cases $(CASES)) \
	  $(if $(RECORDS),--records $(RECORDS))

test: check-rust check-python

check-rust:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
ifeq ($(NEXTEST),yes)
	$(CARGO) nextest run --workspace --locked --no-fail-fast
else
	$(CARGO) test --workspace --locked --no-fail-fast
endif

check-python: build
	$(VENV)/bin/python -m mypy --config-file python/pyproject.toml python/python/shardfeed
	for folder in examples/*/; do \
	  MYPYPATH=tests $(VENV)/bin/python -m mypy --config-file python/pyproject.toml $$folder || exit 1; done
	cd python && ../$(VENV)/bin/python -m mypy.stubtest shardfeed._native --mypy-config-file pyproject.toml \
	  --ignore-disjoint-bases --allowlist stubtest_allowed.txt --ignore-unused-allowlist
	cd python && ../$(VENV)/bin/python -m pytest
	$(VENV)/bin/python -m pytest -c python/pyproject.toml --rootdir deploy/tests deploy/tests/test_config.py

# The debug build, which is optimized a little: what overflows or breaks an assertion is a find.
SECONDS ?= 600

fuzz:
	$(CARGO) run --quiet --locked -p shardfeed-fuzz -- --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(TARGETS)

# Leaves the command and the Python package with both decoders; `make build` puts them back.
test-turbojpeg: build
	@command -v cmake >/dev/null && command -v nasm >/dev/null || { \
	  echo "error: cmake and nasm are missing; libjpeg-turbo is built with them (Debian: apt install cmake nasm)" >&2; exit 1; }
	cp target/release/shardfeed target/release/shardfeed-without-turbojpeg
	$(CARGO) clippy --workspace --all-targets --locked --features shardfeed/turbojpeg -- -D warnings
	$(CARGO) test --workspace --locked --no-fail-fast --features shardfeed/turbojpeg \
	  --test parts --test decoders --test image_goldens --test random_operators --test draining
	$(CARGO) build --release --locked -p shardfeed --features turbojpeg
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(VENV)/bin/maturin develop --release --locked --quiet -m python/Cargo.toml --features turbojpeg
	cd python && SHARDFEED_BINARY_WITHOUT_TURBOJPEG=$(CURDIR)/target/release/shardfeed-without-turbojpeg \
	  ../$(VENV)/bin/python -m pytest tests/test_decoders.py tests/test_images.py

KILLS ?= 100

test-kills: build
	cd python && SHARDFEED_KILLS=$(KILLS) ../$(VENV)/bin/python -m pytest -o faulthandler_timeout=3600 tests/test_kills.py

# The assemblers of the oldest CUDA whose drivers are supported, and of recent ones, for kinds of GPU that they know.
KERNELS := worker/device/kernels
PTXAS := nvidia-cuda-nvcc-cu12==12.0.140:70,75,80,86,89,90 nvidia-cuda-nvcc-cu12==12.9.86:70,75,80,86,89,90,100,120 \
  nvidia-cuda-nvcc==13.0.88:75,80,86,89,90,100,120

check-kernels: $(VENV)/.installed
	$(VENV)/bin/python $(KERNELS)/make.py --check
	@set -e; for each in $(PTXAS); do \
	  package=$${each%%:*}; folder=target/ptxas/$$package; \
	  test -d $$folder || $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target $$folder $$package; \
	  for kind in $$(echo $${each##*:} | tr , ' '); do \
	    $$folder/nvidia/*/bin/ptxas --warning-as-error -arch=sm_$$kind -o target/ptxas/kernels-$$kind.cubin $(KERNELS)/kernels.ptx; \
	    echo "$$package: kernels.ptx assembles for sm_$$kind"; done; done

# FRAMEWORKS="torch" runs one of them.
test-frameworks: build
	$(VENV)/bin/python python/tests/frameworks/run.py target/frameworks $(FRAMEWORKS)

# As root: machines, networks and containers are made, and go again. Each part by itself, too.
test-deploy: test-deploy-kubernetes test-deploy-monitoring test-deploy-systemd test-deploy-docker test-deploy-slurm

DEPLOY_TEST = $(VENV)/bin/python -m pytest -o faulthandler_timeout=3600 -c python/pyproject.toml --rootdir deploy/tests

test-deploy-systemd: build
	$(DEPLOY_TEST) deploy/tests/test_systemd.py

test-deploy-docker: build
	$(DEPLOY_TEST) deploy/tests/test_docker.py

test-deploy-monitoring: build
	$(DEPLOY_TEST) deploy/tests/test_monitoring.py

test-deploy-slurm: build
	$(DEPLOY_TEST) deploy/tests/test_slurm.py

test-deploy-kubernetes: build
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r deploy/tests/requirements.txt
	MYPYPATH=examples/digits:tests:python/tests/frameworks $(VENV)/bin/python -m mypy --config-file python/pyproject.toml deploy/tests
	$(DEPLOY_TEST) deploy/tests/test_kubernetes.py deploy/tests/test_pods.py

# The extension module of `build` is of the stable ABI: the same file goes with each. PYTEST="-k ranks" runs some of the tests.
PYTHONS ?= python3.12 python3.13

test-pythons: build
	@set -e; for python in $(PYTHONS); do \
	  version=$$($$python -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])') || { \
	    echo "error: $$python is missing; name others with PYTHONS=" >&2; exit 1; }; \
	  home=$(CURDIR)/target/pythons/$$version; \
	  cmp -s python/requirements-dev.txt $$home/.installed || { \
	    echo "installing Python tools into $$home"; \
	    $$python -m venv --clear $$home; \
	    $$home/bin/python -m pip install --quiet --disable-pip-version-check -r python/requirements-dev.txt; \
	    echo $(CURDIR)/python/python > $$($$home/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shardfeed.pth; \
	    cp python/requirements-dev.txt $$home/.installed; }; \
	  echo "Python $$version"; \
	  (cd python && $$home/bin/python -m pytest -p no:cacheprovider $(PYTEST)); \
	done

bench: build
	$(CARGO) bench --locked -p shardfeed-bench
	$(VENV)/bin/python bench/loader.py
	$(VENV)/bin/python bench/in_cluster.py
	$(MAKE) bench-peers

# Ours beside tf.data and others. What is beside this checkout is used: photographs, and another harness.
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

# Only this build lets tokio take its randomness from a seed; it never meets the others.
CHAOS := RUSTFLAGS="--cfg tokio_unstable" CARGO_TARGET_DIR=target/chaos $(CARGO) --config chaos/build.toml
SEEDS ?= 100
START ?= 0

chaos:
ifdef PATCH
	command=$$(CARGO=$(CARGO) chaos/patched.sh $(PATCH)) && SHARDFEED_CHAOS_PATCH=$(PATCH) $$command run --seeds $(SEEDS) --start $(START)
else
	$(CHAOS) build --quiet --locked -p shardfeed-chaos
	target/chaos/debug/shardfeed-chaos run --seeds $(SEEDS) --start $(START) $(if $(TWICE),--twice)
endif

chaos-test:
	$(CHAOS) test --quiet --locked -p shardfeed-chaos

# Every deliberate bug must be found.
chaos-bugs:
	CARGO=$(CARGO) chaos/bugs.sh

clean:
	rm -rf target $(VENV) .demo
