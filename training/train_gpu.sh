#!/bin/bash
# Trains the embedded model on one GPU machine without a network, within one call of ten minutes:
#     training/train_gpu.sh SHARDS OUT SECONDS [SHAPE DEVICE]
# OUT gets the log and the model in Q8_0, in parts of 15 MB (cat model.gguf.* >model.gguf), with their checksum.
# SHARDS has tokenizer.json and what training.prepare wrote. Stops at once if anything is missing.
set -euo pipefail
mkdir -p "$2"
shards=$(realpath "$1") out=$(realpath "$2") seconds=$3 shape=${4:-embedded} device=${5:-cuda} work=$(mktemp -d)
cd "$(dirname "$0")/.."
export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD:$(ls "$PWD"/wheels/gguf-*.whl 2>/dev/null || true)
{
    for kind in prose code chat templates; do ls "$shards/$kind.xz" "$shards/$kind.held-out.xz"; done
    python3 -c 'import gguf, tokenizers, torch; print("torch", torch.__version__)'
    python3 -m training.train "$shards" "$work" --seconds $((seconds - SECONDS)) --shape "$shape" --device "$device" ${ROWS:+--rows $ROWS}
    python3 -m training.export "$work/weights.pt" "$shards/tokenizer.json" "$work/model.gguf" --type q8_0
    (cd "$work" && sha256sum model.gguf)
    split -b 15000000 -d "$work/model.gguf" "$out/model.gguf."
    ls -l "$out"
} 2>&1 | tee "$out/train.log"
