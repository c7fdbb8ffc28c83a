"""Continues the prompts of a data set on a Ray cluster: python docs/examples/ray_batch.py [MODEL.gguf]."""

import sys

import ray

from pymtp import GenerationParams, SamplingParams
from pymtp.ray import Completions

prompts = [{"prompt": f"def {name}("} for name in ("red", "green", "blue", "black", "white", "add", "mul", "sub")]
params = GenerationParams(sampling=SamplingParams(temperature=0), max_tokens=24)
model = {"path": sys.argv[1] if sys.argv[1:] else None, "n_ctx": 1024, "n_threads": 1, "params": params}

rows = ray.data.from_items(prompts).map_batches(
    Completions, fn_constructor_kwargs=model, compute=ray.data.ActorPoolStrategy(size=2), batch_size=4
)
for row in rows.take_all():
    print(row["prompt"] + row["text"].split("\n")[0])
