# make run      train the quick start on this machine's CPU       make test     every test that needs no GPU
# make build    build/bin/trireme                                 make unit     the tests of one process, under a minute
# make clients  TensorBoard, Perfetto, Prometheus, Chromium, check-jsonschema, tokenizers, tiktoken, transformers,
#               pyarrow, PyTorch: tests that need them are skipped otherwise
# make install  executable, scripts and configs into PREFIX       make uninstall
# make deps     the packages that all of this needs
# make bench    speed of a step and of every kernel at CONFIG's shapes, on this machine's GPU
# make soak     the long tests: another compiler, sanitizers, hundreds of kills, hangs and faults; or one of them: make
#               soak-crash ...
# make lint     format, scripts, line lengths, retired words, commands of documents, clang-tidy on changed lines
# make format   clang-format over the tree                        make clean
BUILD ?= build
JOBS ?= $(shell nproc)
CONFIG ?= configs/gpt2_124m.yaml
PREFIX ?= /usr/local
# If the quick start creates the build folder, it includes the CUDA backend only if this machine has a GPU, because
# compiling it takes minutes. The other targets add it later.
CUDA = $(if $(shell grep -s '^TRIREME_CUDA:STRING=GPU' $(BUILD)/CMakeCache.txt),-DTRIREME_CUDA=AUTO)
run: CUDA = $(if $(wildcard $(BUILD)/CMakeCache.txt),,-DTRIREME_CUDA=GPU)
run: START := $(shell date +%s)

SOAKS := soak-clang soak-address soak-thread soak-crash soak-hang soak-storage soak-heal soak-fleet soak-doctor \
  soak-slow soak-bubble soak-predict soak-cores soak-fresh
# The interpreters that `make clients` installed, if any.
ifneq ($(wildcard $(BUILD)/clients/bin/python),)
export TRIREME_TEST_PYTHON ?= $(abspath $(BUILD)/clients/bin/python)
export TRIREME_TEST_TORCH ?= $(abspath $(BUILD)/clients/torch/bin/python)
endif
.PHONY: build all configure run test unit lint bench soak $(SOAKS) install uninstall deps clients format clean

# Builds only the executable: the tests would take three times as long again.
build: configure
	@cmake --build $(BUILD) -j $(JOBS) --target trireme

all: configure
	@cmake --build $(BUILD) -j $(JOBS)

# CMake prints its messages to the user on stderr.
configure: deps
	@cmake -S . -B $(BUILD) -G Ninja $(CUDA) >$(BUILD).log || { cat $(BUILD).log; exit 1; }
	@rm -f $(BUILD).log

run: build
	@built=$$(date +%s); TRIREME=$(BUILD)/bin/trireme bash configs/quickstart.sh \
	  && echo "make run: PASSED (packages and build $$((built - $(START))) s, training $$(($$(date +%s) - built)) s)" \
	  || { echo "make run: FAILED"; exit 1; }

# Runs one test more than there are cores, because those of Slurm mostly wait.
test: all
	@ctest -j $$(($(JOBS) + 1)) --test-dir $(BUILD) --output-on-failure --timeout 600 \
	  && echo "make test: PASSED" || { echo "make test: FAILED"; exit 1; }

unit: all
	@ctest --test-dir $(BUILD) --output-on-failure --timeout 600 -L unit \
	  && echo "make unit: PASSED" || { echo "make unit: FAILED"; exit 1; }

# With clang-tidy it also checks the lines changed since LINT_BASE (HEAD~1); TIDY=all: every file; TIDY=none: no file.
lint: build
	@bash tests/lint.sh $(BUILD) && echo "make lint: PASSED" || { echo "make lint: FAILED"; exit 1; }

bench: build
	@slurm/mpirun -n 1 $(BUILD)/bin/trireme bench step $(CONFIG) --set run.device=cuda --set data.global_batch=32
	@slurm/mpirun -n 1 $(BUILD)/bin/trireme bench kernels $(CONFIG) --set run.device=cuda --set data.global_batch=32

soak: $(SOAKS)

$(SOAKS): deps
	@JOBS=$(JOBS) bash tests/soak.sh $(@:soak-%=%)

install: build
	@cmake --install $(BUILD) --prefix $(PREFIX)

# Removes what the last install created there, including its folders.
uninstall:
	@test -e $(BUILD)/install_manifest.txt || { echo "nothing was installed from $(BUILD)"; exit 1; }
	@xargs -d '\n' rm -f <$(BUILD)/install_manifest.txt
	@sed -nE 's,/share/(doc/)?trireme/.*,/share/\1trireme,p' $(BUILD)/install_manifest.txt | sort -u \
	  | while read -r folder; do find "$$folder" -depth -type d -empty -delete; done
	@rm -f $(BUILD)/install_manifest.txt

deps:
	@bash slurm/install-packages

clients:
	@bash tests/install-clients $(BUILD)/clients

format:
	@git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format -i

clean:
	rm -rf $(BUILD)
