# make run     train the quick start on this machine's CPU        make test    every test that needs no GPU
# make build   build/bin/trireme                                  make unit    the tests of one process, under a minute
# make bench   speed of a step and of every kernel at CONFIG's shapes, on this machine's GPU
# make format  clang-format over the tree                         make clean
BUILD ?= build
JOBS ?= $(shell nproc)
CONFIG ?= configs/gpt2_124m.yaml

.PHONY: build run test unit bench format clean install

build: install
	@cmake -S . -B $(BUILD) -G Ninja >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }
	@rm -f $(BUILD).log
	@cmake --build $(BUILD) -j $(JOBS)

run: build
	@bash .ci/quickstart

test: build
	@ctest --test-dir $(BUILD) --output-on-failure --timeout 600 \
	  && echo "make test: PASSED" || { echo "make test: FAILED"; exit 1; }

unit: build
	@ctest --test-dir $(BUILD) --output-on-failure -L unit \
	  && echo "make unit: PASSED" || { echo "make unit: FAILED"; exit 1; }

bench: build
	@.ci/mpirun -n 1 $(BUILD)/bin/trireme bench step $(CONFIG) --set run.device=cuda --set data.global_batch=32
	@.ci/mpirun -n 1 $(BUILD)/bin/trireme bench kernels $(CONFIG) --set run.device=cuda --set data.global_batch=32

install:
	@bash .ci/install

format:
	@git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format -i

clean:
	rm -rf $(BUILD)
