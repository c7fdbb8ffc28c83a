#!/usr/bin/env bash
# Everything on a bare CUDA machine without network, in one call: builds pymtp and llama.cpp's own programs for its GPU,
# writes the models of real shape, compares, and prints short tables last.
#
#     bench/gpu.sh CARRIED OUT [SECONDS]
#
# CARRIED: what bench/pack_gpu.sh has collected. OUT: tables (*.md), and everything else in rest.tar.xz. SECONDS (540)
# is the time that all of it may take; comparisons are cut short to keep to it. WORK (/tmp/pymtp-gpu): builds, kept, so
# that a second call builds only what has changed; models lie there too if /dev/shm has no room for them.
# CASES ("tests nano dense moe"): what to do, in this order. `tests` runs native/tests/test-cuda*.cpp, `sanitizer` a part
# of it under compute-sanitizer; `products` and `attention` time kernels alone. `rows`, `sequences` and `depths` are of a
# dense model in Q4_K_M: passes by their rows, several sequences beside llama-server, and rounds after long texts. Shapes
# of bench/synth_gguf.py may name a type of weights, and how many KiB of shared memory pymtp's kernels may use, as on
# other GPUs: dense:Q4_K_M, moe:Q6_K:99, products::99.
set -uo pipefail

usage='usage: bench/gpu.sh CARRIED OUT [SECONDS]'
carried=$(realpath "${1:?$usage}") out=$(realpath -m "${2:?$usage}") seconds=${3:-540}
work=${WORK:-/tmp/pymtp-gpu} cases=${CASES:-tests nano dense moe}
site=$work/site programs=$work/programs logs=$out/rest
cd "$(dirname "$0")/.." || exit 1
mkdir -p "$work" "$out" "$logs"

fail() { echo "gpu.sh: $*" >&2; exit 1; }
say() { printf '%4d s  %s\n' $SECONDS "$*" >&2; }
# step LOG COMMAND...: what it prints goes to a log; if it fails, so does everything, with the log's end
step() {
    local log=$logs/$1
    shift
    "$@" >"$log" 2>&1 || { tail -n 30 "$log" >&2; fail "failed: $1 ... (see $log)"; }
}

# --- what is there ---

for tool in python3 cmake nvcc nvidia-smi c++ xz tar sha256sum; do
    command -v $tool >/dev/null || fail "$tool not found"
done
test -f "$carried/SHA256SUMS" || fail "$carried holds no SHA256SUMS: make it with bench/pack_gpu.sh"
(cd "$carried" && sha256sum --quiet -c SHA256SUMS) || fail "$carried is not what bench/pack_gpu.sh has made"
version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
test "$version" = "$(cat "$carried/python-version")" ||
    fail "python3 is $version, carried are wheels for $(cat "$carried/python-version"): pack with PYTHON_VERSION=$version"
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
test -n "$capability" || fail 'nvidia-smi names no GPU'
free_gb() { echo $(($(df --output=avail -k "$1" | tail -n 1) >> 20)); }
models=/dev/shm
test "$(free_gb $models)" -ge 16 || models=$work
test "$(free_gb "$work")" -ge 22 || fail "$work has $(free_gb "$work") GB free, 22 are needed: set WORK"
say "$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1), sm_$capability, $(nproc) cores, Python $version"

# --- build: the CUDA part once, for pymtp; llama.cpp's own programs meanwhile, and linked to it in the end ---

export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
step unpack.log tar -C "$work" -xf "$carried/llama.cpp.tar.xz"
step wheels.log python3 -m pip install --quiet --no-index --no-deps --upgrade --target "$site" "$carried"/wheels/*.whl
generator=()
command -v ninja >/dev/null && generator=(-G Ninja)

build_programs() {
    cmake "${generator[@]}" -S bench/programs/llama_cpp -B "$programs" -DPYMTP_LLAMA_CPP_DIR="$work/llama.cpp" "$@" &&
        cmake --build "$programs" --target programs -j "$(nproc)"
}

trap 'kill $(jobs -p) 2>/dev/null; rm -f "$models/pymtp-synth.gguf"' EXIT
build_programs >"$logs/programs.log" 2>&1 &
export CMAKE_BUILD_PARALLEL_LEVEL=$(nproc)
CMAKE_ARGS="-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=$capability
    -DPYMTP_LLAMA_CPP_DIR=$work/llama.cpp" step pymtp.log \
    python3 -m pip install --no-index --no-deps --no-build-isolation --upgrade --target "$site" .
say 'pymtp is built'
wait $! || { tail -n 30 "$logs/programs.log" >&2; fail "llama.cpp's own programs were not built"; }
step programs-cuda.log build_programs -DPYMTP_GPU_LIBRARY="$site/pymtp/lib/libpymtp-ggml-cuda.so"
step devices.log "$programs/bin/llama-server" --list-devices
grep -q CUDA0 "$logs/devices.log" || fail "llama-server sees no GPU: see $logs/devices.log"
say "llama.cpp's own programs are built"

# --- compare ---

# compare NAME MODEL ARGUMENT...: with its share of the time that is left
n_left=$(wc -w <<<"$cases")
n_left=$((n_left - $(grep -cE '^(tests|sanitizer|products|attention|rows|sequences|depths)' <<<"${cases// /$'\n'}")))
compare() {
    local name=$1 model=$2
    shift 2
    local limit=$(((seconds - SECONDS - 10) / n_left - 10)) # a model is written in 10 s
    n_left=$((n_left - 1))
    test $limit -gt 5 || { echo "$name: no time left" | tee -a "$out/summary.txt" >&2; return; }
    say "$name: $limit s"
    echo "$name" >>"$out/summary.txt"
    timeout $((limit + 60)) python3 bench/compare.py "$model" "$carried/prompts.jsonl" --llama-cpp "$programs/bin" \
        --logs "$logs/$name" --out "$logs/$name" --time-limit $limit --short "$@" \
        >>"$out/summary.txt" 2>"$logs/$name.log" || tail -n 5 "$logs/$name.log" | tee -a "$out/summary.txt" >&2
    cp "$logs/$name.md" "$out/" 2>/dev/null
}

# native SOURCE PROGRAM: compiles a program of ours that knows ggml alone, with the library that was built
native() {
    step "$(basename "$2").log" c++ -std=c++17 -O2 "$1" -o "$2" -I build/wheel/llama.cpp/ggml/include \
        -I native/tests -L "$site/pymtp/lib" -Wl,-rpath,"$site/pymtp/lib" -l:libpymtp-ggml.so -l:libpymtp-ggml-base.so -ldl
}

# note NAME SECONDS COMMAND...: with the end of what it prints in the summary; a failure does not end the rest
note() {
    local name=$1 limit=$2
    shift 2
    say "$name: at most $limit s"
    timeout "$limit" "$@" 2>&1 | grep -v "graph warmup complete" >"$logs/$name.log"
    local status=${PIPESTATUS[0]}
    { echo "$name: exit status $status"; tail -n "${LINES_KEPT:-3}" "$logs/$name.log"; } >>"$out/summary.txt"
}

# synth SHAPE TYPE: a model of random weights, if it is not the last one
written=
synth() {
    test "$written" = "$*" ||
        step "synth-$1-$2.log" python3 bench/synth_gguf.py "$1" "$models/pymtp-synth.gguf" --type "$2"
    written=$*
}

: >"$out/summary.txt"
for case in $cases; do
    IFS=: read -r shape type shared <<<"$case"
    name=${case//:/-}
    case $shape in
    tests)
        native native/tests/test-cuda.cpp "$work/test-cuda"
        LINES_KEPT=20 note test-cuda 200 bash -c "seq 0 15 | xargs -P 16 -I {} '$work/test-cuda' {} 16"
        native native/tests/test-cuda-invariant.cpp "$work/test-cuda-invariant"
        LINES_KEPT=12 note test-cuda-invariant 60 "$work/test-cuda-invariant"
        ;;
    sanitizer)
        native native/tests/test-cuda.cpp "$work/test-cuda"
        LINES_KEPT=12 note compute-sanitizer 300 compute-sanitizer --error-exitcode 1 "$work/test-cuda" small
        ;;
    products)
        native bench/cuda_products.cpp "$work/cuda-products"
        LINES_KEPT=70 note "$name" 60 "$work/cuda-products" "${shared:-0}" $type
        ;;
    attention)
        native bench/cuda_attention.cpp "$work/cuda-attention"
        LINES_KEPT=20 note "$name" 60 "$work/cuda-attention"
        ;;
    nano)
        compare nano pymtp/embedded/nano-step35-Q4_K_M.gguf -k 1 3 --categories code chat --per-category 2 -n 256 \
            --programs pymtp pymtp-plain server server-plain cli-plain
        ;;
    rows)
        synth dense Q4_K_M
        LINES_KEPT=16 note rows 100 python3 bench/passes.py "$models/pymtp-synth.gguf" \
            --rows 1 2 4 8 9 12 16 24 32 48 64 96 128 256 512
        ;;
    sequences)
        synth dense Q4_K_M
        head -n 32 "$carried/prompts.jsonl" >"$work/prompts.jsonl"
        LINES_KEPT=40 note sequences 300 python3 bench/sequences.py "$models/pymtp-synth.gguf" "$work/prompts.jsonl" \
            --llama-cpp "$programs/bin" --n-seq 1 2 4 8 16 32 -k 0 3 auto --forced-length 2.8 -r 1
        ;;
    depths)
        synth dense Q4_K_M
        for depth in 0 8192 32768 130000; do
            for cache in f16 q4_0; do
                LINES_KEPT=1 note "depth-$depth-$cache" $((60 + depth / 1000)) python3 bench/kernel_times.py "$models/pymtp-synth.gguf" \
                    -k 3 -d $depth --cache $cache --lines 0
            done
        done
        ;;
    dense | moe)
        synth "$shape" "${type:-Q8_0}"
        compare "$name" "$models/pymtp-synth.gguf" --forced-length 2.8 --categories code --per-category 2 \
            ${shared:+--cuda-shared-memory $shared}
        ;;
    *) fail "no case $case" ;;
    esac
done

tar -C "$out" -cf - rest | xz -1 >"$out/rest.tar.xz" && rm -rf "$logs"
say 'done'
cat "$out/summary.txt"
