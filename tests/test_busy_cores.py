"""Threads beside busy processes: what is computed, and how fast."""

from __future__ import annotations

import os
from statistics import median

import numpy as np
import pytest

import busy
from machine import needs_no_gpu
from pymtp import Chunk, ContextParams, Model, ModelParams, Session
from pymtp.embedded import model_path
from pymtp.engine.cores import n_cores
from pymtp.gguf.facts import model_facts
from pymtp.loader import Weights

pytestmark = pytest.mark.model


@needs_no_gpu
def test_logits_do_not_depend_on_the_number_of_threads() -> None:
    rows = {}
    weights = Weights(model_facts(model_path()), ModelParams(), with_heads=True)
    for n_threads in (1, 2, 3):
        with Session(weights.model, ContextParams(n_ctx=512, n_threads=n_threads), n_draft_max=3) as session:
            session.decode([Chunk(list(range(300, 600)), 0, logits="last", feed=True)])
            prompt = session.logits.copy()
            session.decode([Chunk([5, 6, 7, 8], 300, logits="all", feed=True)])
            rows[n_threads] = np.concatenate([prompt, session.logits])
    weights.close()
    np.testing.assert_array_equal(rows[1], rows[2])
    np.testing.assert_array_equal(rows[1], rows[3])


@pytest.mark.slow
@pytest.mark.skipif(n_cores() < 2, reason="one thread computes, whoever is busy")
@pytest.mark.skipif(os.getloadavg()[0] > 0.5 * n_cores(), reason="others keep the cores busy already")
def test_a_busy_process_leaves_a_third_of_the_speed() -> None:
    with Model(draft="none") as model:
        speeds = busy.measure(model, [0, 1], seconds=1, n_repeat=5)
    assert median(speeds[1]) > 0.3 * median(speeds[0])
