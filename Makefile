# Yoke's front door. `make run` trains the tiny model on this machine; `make test` runs every test.
# Both do the set-up first if it is missing (scripts/setup: Debian packages and libtorch).
.PHONY: all run build test truth chaos tool setup format lint clean

PRESET ?= full
BUILD  := build
RECIPE ?= recipes/tiny-cpu.toml

all: build

setup:
	@scripts/setup

build: setup
	@test -f $(BUILD)/build.ninja || cmake --preset $(PRESET) -B $(BUILD)
	@cmake --build $(BUILD) -- $(if $(VERBOSE),-v,--quiet)

run: build
	@$(BUILD)/bin/yoke run $(RECIPE) $(ARGS)

test: build
	@cmake --build $(BUILD) --target lint -- --quiet
	@ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -j 2 $(CTEST_ARGS)

# Every combination of layouts against one rank: minutes more than `make test` takes for its choice of them.
truth: build
	@YOKE_WHOLE_TRUTH=1 $(BUILD)/test/yoke_loop_test --gtest_filter='*Truth*'

# Two hundred ranks killed, stopped or late in the middle of ZeRO steps, and two hundred in the middle of bare collectives.
chaos: build
	@YOKE_WHOLE_CHAOS=1 $(BUILD)/test/yoke_comm_test --gtest_filter='*Chaos*'
	@YOKE_WHOLE_CHAOS=1 $(BUILD)/test/yoke_loop_test --gtest_filter='Chaos*'

# The tool alone, without libtorch.
tool: setup
	@cmake --preset tool && cmake --build build-tool

format:
	@git ls-files '*.h' '*.cc' | xargs clang-format-14 -i

lint: build
	@cmake --build $(BUILD) --target lint

clean:
	rm -rf build build-*
