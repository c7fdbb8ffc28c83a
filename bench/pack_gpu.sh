#!/usr/bin/env bash
# Collects what bench/gpu.sh needs on a machine without network, beside a checkout:
#
#     bench/pack_gpu.sh FOLDER PROMPTS.jsonl [PACKAGE ...]     PACKAGE: what that machine's Python has already (numpy)
#
# PYTHON_VERSION (3.12) is that machine's. Needs the environment that `make` makes, and a network.
set -euo pipefail

usage='usage: bench/pack_gpu.sh FOLDER PROMPTS.jsonl [PACKAGE ...]'
folder=${1:?$usage} prompts=${2:?$usage}
shift 2
present=$(printf '%s\n' "$@")
cd "$(dirname "$0")/.."
python=.venv/bin/python
archive=build/$(sed -n 's/^archive *= *//p' native/llama_cpp.pin)
version=${PYTHON_VERSION:-3.12}
for file in "$python" "$archive" "$prompts"; do
    test -e "$file" || { echo "pack_gpu.sh: $file is missing: run \`make\` first" >&2; exit 1; }
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$folder/wheels" "$scratch/no-patches" "$scratch/wheels"
rm -f "$folder"/wheels/*.whl
cp -f "$prompts" "$folder/prompts.jsonl"
echo "$version" >"$folder/python-version"

echo 'llama.cpp: the libraries and its own programs, unpatched'
"$python" native/prepare_llama_cpp.py tree --tree "$scratch/llama.cpp" --cache build --source "$archive" \
    --patches "$scratch/no-patches"
rm "$scratch/llama.cpp/pymtp-stamp.json"
tar -C "$scratch" -cf - llama.cpp | xz -6 >"$folder/llama.cpp.tar.xz"

echo "wheels for Python $version"
platforms=()
for tag in manylinux_2_28 manylinux_2_27 manylinux_2_24 manylinux_2_17 manylinux_2_12 manylinux2014 manylinux2010 \
    manylinux1; do
    platforms+=(--platform "${tag}_x86_64")
done
pip=("$python" -m pip --disable-pip-version-check --quiet)
# what a build needs, and what pymtp and the models' writer ask for
requirements=('scikit-build-core>=0.12')
while read -r requirement; do
    requirements+=("$requirement")
done < <("$python" -c '
from importlib.metadata import requires
print(*(r for r in requires("pymtp-gguf") if "extra ==" not in r), "gguf", sep="\n")')
"${pip[@]}" download --only-binary=:all: --python-version "$version" --implementation cp "${platforms[@]}" \
    --dest "$scratch/wheels" "${requirements[@]}"
for wheel in "$scratch"/wheels/*.whl; do
    name=$(basename "$wheel" | cut -d- -f1 | tr A-Z_ a-z-)
    grep -qxiF "$name" <<<"$present" || cp "$wheel" "$folder/wheels"
done

(cd "$folder" && find . -type f ! -name SHA256SUMS -print0 | sort -z | xargs -0 sha256sum >SHA256SUMS)
checkout=$(git ls-files -z | xargs -0 stat -c %s | awk '{ sum += $1 } END { print sum }')
echo "$folder: $(($(du -sb "$folder" | cut -f1) >> 20)) MiB, and the checkout $((checkout >> 20)) MiB"
