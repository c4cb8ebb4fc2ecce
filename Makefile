# A thin front. Each target first sees to it that what it needs is installed (setup.sh), then calls
# CMake. `make SETUP=true ...` leaves the first step out.

SETUP ?= sh setup.sh
BUILD := build/release
JOBS  := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

# Tracked files of some patterns, and new ones that git does not ignore; in a source archive, which has no git, all.
files = { git ls-files -co --exclude-standard -- $(1) 2>/dev/null || \
  find . -path ./build -prune -o \( -false $(foreach pattern,$(1),-o -name $(pattern)) \) -print | sed 's|^[.]/||'; }
CXX_FILES   = $(call files,'*.cpp' '*.hpp' '*.cu' '*.cuh')
SHELL_FILES = { $(call files,'*.sh'); echo .ci/run .ci/stages .ci/bare_root .ci/release .ci/versions src/cmake/mpirun.in; }

VERSION = $(shell sed -n 's/^  VERSION //p' CMakeLists.txt)

# Version 19, since versions differ in small things: the system's, or the one that setup.sh loads.
CLANG_FORMAT ?= $(shell command -v clang-format-19 || echo build/llvm/clang-format/clang_format/data/bin/clang-format)
CLANG_TIDY   ?= $(shell command -v clang-tidy-19 || echo build/llvm/clang-tidy/clang_tidy/data/bin/clang-tidy)

# One line where the build folder is another user's, or was copied or moved with its checkout: CMake's own are odd.
USABLE := [ -e build ] || [ -w . ] || \
  { echo 'make: this folder cannot be written. Remedy: copy it to one of your own' >&2; exit 2; }; \
  for file in build $(BUILD) $(BUILD)/CMakeCache.txt; do [ ! -e $$file ] || [ -w $$file ] || \
  { echo "make: $$file is another user's. Remedy: \`make clean\` as that user" >&2; exit 2; }; done; \
  [ ! -e $(BUILD)/CMakeCache.txt ] || \
  [ "$$(sed -n 's/^CMAKE_HOME_DIRECTORY:[A-Z]*=//p' $(BUILD)/CMakeCache.txt)" -ef . ] || \
  { echo 'make: $(BUILD) was made for a checkout in another folder. Remedy: `make clean`' >&2; exit 2; };
# The GPU's kernels for this machine's GPU only. (`cmake --preset release` compiles them for all that are supported.)
# Several files at once, which takes half the time; by ccache where it is installed.
CCACHE := $(shell command -v ccache)
export CCACHE_SLOPPINESS ?= pch_defines,time_macros
CONFIGURE := $(USABLE) cmake --preset release -DRING_ATTENTION_CUDA_HERE=ON -DCMAKE_UNITY_BUILD=ON \
  $(if $(CCACHE),-DCMAKE_CXX_COMPILER_LAUNCHER=$(CCACHE))
COMPILE   := cmake --build $(BUILD) --parallel $(JOBS)
# One more than there are cores, since some tests wait for most of their time.
CTEST     := ctest --test-dir $(BUILD) --output-on-failure --no-tests=error --parallel $(shell expr $(JOBS) + 1)
TELLS_WHAT_IS_LEFT_OUT = --output-junit $(abspath $(BUILD))/tests.xml; code=$$?; \
  python3 tests/not_run.py $(BUILD)/tests.xml || [ $$? -ne 1 ] || code=1; exit $$code

.PHONY: help run test check mutants test-long lessons capstone gpu-lessons python bench bench-report docs player live lessons-module notebooks format format-check lint dist clean
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

help: ## this list
	@sed -n 's/^\([a-z%-]*\):.*## */  make \1	/p' Makefile | sed 's/%/NN/' | expand -t 22

run: ## the ring in one file, a small real problem on 4 ranks, all lessons, and one table
	@$(SETUP) run
	@$(CONFIGURE)
	@$(COMPILE) --target lesson_00_ring_attention
	@echo; echo 'The whole algorithm in one file, lessons/00_attention/ring_attention.cpp, and its difference from dense attention:'
	$(BUILD)/mpirun -n 4 $(BUILD)/lessons/00_ring_attention
	@echo; $(COMPILE) --target ring-attention
	@echo; echo 'A small real problem: the bytes of README.md become tokens, and fixed random projections make'
	@echo 'queries, keys and values of them. Four ranks share them; each sees a quarter of the keys at a time.'
	$(BUILD)/ring-attention example --text README.md --out $(BUILD)/example
	$(BUILD)/mpirun -n 4 $(BUILD)/ring-attention run --q $(BUILD)/example/q.npy --k $(BUILD)/example/k.npy \
	  --v $(BUILD)/example/v.npy --out $(BUILD)/example/results --causal --check --expect-ranks 4
	@echo; $(COMPILE) --target lessons
	@echo; sh lessons/run_all.sh $(BUILD)

test: ## build and run the tests (about 8 minutes on 2 cores, half of them the tests)
	@$(SETUP) run test
	@$(CONFIGURE) -DRING_ATTENTION_TESTS=ON
	@$(COMPILE)
	@$(CTEST) --label-exclude long $(TELLS_WHAT_IS_LEFT_OUT)

check: ## build and run what a change touches (FILES=..., SINCE=COMMIT; else since the last commit)
	@$(SETUP) run test
	@$(CONFIGURE) -DRING_ATTENTION_TESTS=ON > /dev/null
	@python3 tests/check.py $(BUILD) $(FILES)

mutants: ## plant each mistake of tests/mutants.tsv, and say which test notices it (long; NAMES=...: these)
	@$(SETUP) run test
	@$(CONFIGURE) -DRING_ATTENTION_TESTS=ON > /dev/null
	@python3 tests/mutants.py $(NAMES)

test-long: ## the tests that take longer as well
	@$(SETUP) run test
	@$(CONFIGURE) -DRING_ATTENTION_TESTS=ON
	@$(COMPILE)
	@$(CTEST) $(TELLS_WHAT_IS_LEFT_OUT)

capstone: ## judge your own ring, in any language (DIR=FOLDER, which has the program `run`)
	@$(SETUP) diagnose
	@python=python3; $$python -c "import numpy" 2> /dev/null || python=/usr/bin/python3; \
	  $$python lessons/17_capstone/judge.py "$(DIR)"

lessons: ## build and run the lessons
	@$(SETUP) run
	@$(CONFIGURE)
	@$(COMPILE) --target ring-attention lessons
	@sh lessons/run_all.sh $(BUILD)

# The headers of CUDA and of NCCL are enough: no nvcc and no GPU.
FOR_EMULATOR := -DRING_ATTENTION_EMULATOR=ON
gpu-lessons: ## build and run the GPU lessons on an emulated GPU: correctness only
	@$(SETUP) run gpu-headers
	@$(CONFIGURE) $(FOR_EMULATOR)
	@$(COMPILE) --target emulated_lessons
	@sh lessons/run_all.sh --emulated $(BUILD)

# Those of lesson 11 are kernels, for the emulator: exercise-11a to exercise-11e.
exercise-%: ## the exercise of a lesson: copy it, build it, judge it (exercise-05)
	@$(SETUP) run diagnose $(if $(filter 11%,$*),gpu-headers)
	@$(CONFIGURE) $(if $(filter 11%,$*),$(FOR_EMULATOR)) > /dev/null
	@sh lessons/exercise.sh $* $(BUILD)

python: ## build the Python package, in build/release/python
	@$(SETUP) run python
	@$(CONFIGURE) -DRING_ATTENTION_PYTHON=ON
	@$(COMPILE) --target ring_attention_python

bench: ## build and run the benchmarks (about 15 minutes on 2 cores; nothing else should run)
	@$(SETUP) run test bench
	@$(CONFIGURE) -DRING_ATTENTION_TESTS=ON
	@$(COMPILE) --target bench

bench-report: ## write what `make bench` measured into docs/results.md, README.md and lesson 03's LADDER.md
	@python3 tests/benchmarks/report.py $(BUILD)/benchmarks/results.json

docs: ## the documentation site, in build/release/docs
	@$(SETUP) run docs
	@$(CONFIGURE)
	@$(COMPILE) --target docs

player: ## open the player in a browser (SCENE=blocking: at this scene)
	@python3 docs/address.py open $(SCENE)

# The compiler keeps its C library where it is told.
FOR_ZIG := ZIG_GLOBAL_CACHE_DIR=$(abspath build/zig/cache) ZIG_LOCAL_CACHE_DIR=$(abspath build/zig/cache)
lessons-module: ## compile the lessons' programs for WebAssembly, for docs/lessons_page/index.html
	@$(SETUP) live
	@$(USABLE) $(FOR_ZIG) cmake --preset live > /dev/null
	@$(FOR_ZIG) cmake --build --preset live --parallel $(JOBS)
	@python3 src/live/pack.py build/live/live_lessons.wasm

live: lessons-module ## build the pages' modules for WebAssembly, and open the player (MODULE=FILE: only write its module there)
	@python3 src/live/pack.py build/live/live.wasm $(MODULE)
	@$(if $(MODULE),:,python3 docs/address.py open ranks=4)

notebooks: ## execute the notebooks, and store their pictures in them
	@$(SETUP) run notebooks
	@$(CONFIGURE)
	@$(COMPILE) --target notebooks

format: ## format the source in place
	@$(SETUP) format
	@$(CXX_FILES) | xargs $(CLANG_FORMAT) -i

format-check: ## say which files `make format` would change
	@$(SETUP) format
	@$(CLANG_FORMAT) --version
	@$(CXX_FILES) | xargs $(CLANG_FORMAT) --dry-run --Werror

lint: format-check ## the checks of all source files, with clang-tidy over every file that is compiled (FILES=changed: fewer)
	@$(SETUP) run test lint bench
	@if command -v cmake-lint > /dev/null; then $(call files,'*CMakeLists.txt' '*.cmake') | xargs cmake-lint --suppress-decorations; \
	  else echo 'not checked: the CMake files (no cmake-lint here)'; fi
	@$(call files,'*.py') | xargs flake8
	@$(SHELL_FILES) | xargs shellcheck
	@python3 .ci/openings.py
	@$(CONFIGURE) -B build/lint -DRING_ATTENTION_TESTS=ON -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
	  -DCMAKE_UNITY_BUILD=OFF > /dev/null
	@python3 .ci/tidy.py $(CLANG_TIDY) $(FILES)

dist: ## the source archive of the last commit, in build/dist
	@[ -e .git ] || { echo 'make: an archive is made of a commit, and this folder is no git checkout' >&2; exit 2; }
	@$(USABLE) mkdir -p build/dist
	git archive --format=tar.gz --prefix=ring-attention-$(VERSION)/ -o build/dist/ring-attention-$(VERSION).tar.gz HEAD

clean: ## remove build/
	rm -rf build
