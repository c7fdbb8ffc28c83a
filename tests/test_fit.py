"""What has room: where parts of a model go, by numbers alone. tests/test_plan.py compares with llama.cpp's loader."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from pymtp import InvalidParameter, ModelParams
from pymtp.placement.demand import Demand, MemoryEstimate
from pymtp.placement.fit import fit, fit_context, is_open, margins_of
from pymtp.placement.places import EXPERTS, Place, Spot, layer_owners, places

HOST = Spot("CPU", "", None, "CPU")
PARAMS = ModelParams(fit_target=(0,))
LAYER, EXPERT, CACHE, OUTPUT, EMBEDDING, COMPUTE, KEPT = 100, 1000, 10, 500, 400, 30, 7


def demand(
    n_layer: int = 8,
    n_heads: int = 1,
    *,
    experts: bool = False,
    ties: bool = False,
    cache: int = CACHE,
    n_ctx: int = 1024,
    moe_cache_bytes: int = 0,
) -> Demand:
    """What a model needs that is not there."""
    numbers = range(n_layer + n_heads)
    tensors = {"token_embd.weight": EMBEDDING, **{f"blk.{i}.attn_q.weight": LAYER for i in numbers}}
    if experts:
        tensors |= {f"blk.{i}.ffn_up_exps.weight": EXPERT for i in numbers}
    if not ties:
        tensors["output.weight"] = OUTPUT
    memory, found = MemoryEstimate.__new__(MemoryEstimate), Demand.__new__(Demand)
    vars(memory).update(
        n_ctx=n_ctx,
        kv_bytes=cache * n_layer,
        heads_kv_bytes=cache * n_heads,
        state_bytes=0,
        compute_bytes=COMPUTE,
        layer_bytes=(cache,) * (n_layer + n_heads),
    )
    vars(found).update(
        n_layer=n_layer,
        n_layer_all=n_layer + n_heads,
        tensors=tensors,
        has_output=not ties,
        context=memory,
        kept_bytes=KEPT,
        assistant_bytes=0,
        moe_cache_bytes=moe_cache_bytes,
        has_cache_on_host=False,
    )
    return found


def devices(*free: int | None, remote: bool = False) -> list[Spot]:
    return [Spot(f"GPU{i}", "", each, f"GPU{i}", is_remote=remote) for i, each in enumerate(free)]


def placed(params: ModelParams, of: Demand, spots: list[Spot]) -> list[Place]:
    """With the rules of the loader, but for the token embedding, which stays on the host."""
    overrides = [*params.override_tensor]
    overrides += [(EXPERTS, "CPU")] * params.cpu_moe
    overrides += [(rf"^blk\.{layer}{EXPERTS}", "CPU") for layer in range(params.n_cpu_moe)]
    return places(params, overrides, of, spots, HOST)


def fitted(of: Demand, spots: list[Spot], params: ModelParams = PARAMS) -> tuple[ModelParams, list[Place]]:
    found = fit(params, lambda _: of, spots, lambda tried, needed: placed(tried, needed, spots), may_shrink=False)
    return found, placed(found, of, spots)


def test_where_all_has_room_nothing_changes() -> None:
    of = demand()
    (gpu, host) = placed(PARAMS, of, devices(10**6))
    assert fitted(of, devices(gpu.needed_bytes))[0] is PARAMS
    assert gpu.layers == list(range(9)) and gpu.has_output and host.has_embedding
    assert gpu.needed_bytes == 9 * (LAYER + CACHE) + OUTPUT + COMPUTE + KEPT
    assert fitted(of, devices(None))[0] is PARAMS  # a device that does not say what is free


@pytest.mark.parametrize("n", range(10))
def test_the_last_layers_and_the_output_have_room_first(n: int) -> None:
    """Heads are the last layers: a draft needs one device."""
    room = OUTPUT + COMPUTE + KEPT + n * (LAYER + CACHE)
    params, (gpu, host) = fitted(demand(), devices(room))
    assert gpu.layers == list(range(9 - n, 9)) and gpu.has_output
    assert host.layers == list(range(9 - n))
    assert params.n_gpu_layers == (n + 1 if n < 9 else -1)
    assert gpu.needed_bytes == room


def test_what_has_no_room_at_all_stays_on_the_host() -> None:
    params, (gpu, host) = fitted(demand(), devices(OUTPUT))
    assert params.n_gpu_layers == 0
    assert gpu.needed_bytes == 0 and host.has_output


@pytest.mark.parametrize("n", range(1, 9))
def test_the_host_keeps_the_experts_of_the_first_layers(n: int) -> None:
    of = demand(experts=True)
    whole = placed(PARAMS, of, devices(10**6))[0].needed_bytes
    params, (gpu, host) = fitted(of, devices(whole - n * EXPERT))
    assert params.n_cpu_moe == n
    assert gpu.layers == list(range(9)) and gpu.has_output
    assert host.expert_layers == list(range(n))
    assert gpu.expert_layers == list(range(n, 9))  # those of the head too


def test_experts_of_heads_go_before_whole_layers_of_the_trunk() -> None:
    of = demand(experts=True)
    room = OUTPUT + COMPUTE + KEPT + EXPERT + 4 * (LAYER + CACHE)
    params, (gpu, _) = fitted(of, devices(room + LAYER))
    assert gpu.layers == [5, 6, 7, 8]
    assert gpu.expert_layers == [8]
    assert params.n_cpu_moe == 8


def test_a_device_too_small_for_the_experts_of_a_head_gets_its_other_tensors() -> None:
    of = demand(experts=True)
    params, (gpu, _) = fitted(of, devices(OUTPUT + COMPUTE + KEPT + 3 * (LAYER + CACHE)))
    assert params.cpu_moe
    assert gpu.layers == [6, 7, 8] and not gpu.expert_layers


def test_two_devices_have_what_there_is_room_for_on_each() -> None:
    each = LAYER + CACHE
    params, (first, second, host) = fitted(
        demand(), devices(COMPUTE + 2 * each, OUTPUT + COMPUTE + KEPT + 4 * each + LAYER)
    )
    assert second.layers == [5, 6, 7, 8] and second.has_output
    assert first.layers == [3, 4]
    assert host.layers == [0, 1, 2]
    assert params.tensor_split == (2, 5)


@pytest.mark.parametrize("share", [0.1, 1, 10])
def test_heads_are_where_the_output_is(share: float) -> None:
    of = demand(n_heads=3)
    _, last, _ = placed(replace(PARAMS, tensor_split=(1, share)), of, devices(10**6, 10**6))
    assert {8, 9, 10} <= set(last.layers) and last.has_output


def test_output_and_heads_go_to_the_device_that_has_room_for_all_of_them() -> None:
    block = OUTPUT + COMPUTE + KEPT + 3 * (LAYER + CACHE)
    _, (first, last, host) = fitted(demand(n_heads=3), devices(block + 2 * (LAYER + CACHE), block - 1))
    assert first.layers == [6, 7, 8, 9, 10] and first.has_output
    assert last.needed_bytes == 0 and host.layers == [0, 1, 2, 3, 4, 5]
    _, (first, last, _) = fitted(demand(n_heads=3), devices(COMPUTE + 2 * (LAYER + CACHE), block))
    assert last.layers == [8, 9, 10] and first.layers == [6, 7]


def test_a_split_by_free_memory_that_has_no_room_is_another() -> None:
    """Two devices with as much free; the output is large."""
    of = demand()
    spots = devices(COMPUTE + 6 * (LAYER + CACHE), COMPUTE + 6 * (LAYER + CACHE) + KEPT)
    params, (first, second, host) = fitted(of, spots)
    assert second.has_output and second.layers == [8]
    assert first.layers == list(range(2, 8))
    assert host.layers == [0, 1]
    assert params.n_gpu_layers == 8


def test_heads_and_output_stay_here_where_the_last_device_is_elsewhere() -> None:
    params, (remote, host) = fitted(demand(), devices(COMPUTE + 3 * (LAYER + CACHE), remote=True))
    assert remote.layers == [5, 6, 7]
    assert host.layers == [0, 1, 2, 3, 4, 8] and host.has_output
    assert params.n_gpu_layers == 5  # the head and the output count


def fitted_to(room: int, fit_ctx: int, *, may_shrink: bool = True, host: int | None = None) -> tuple[int | None, int]:
    """The context, and the layers on the device, of a model whose caches grow with the context: 1024 tokens if None."""
    spots = devices(room)

    def of(n_ctx: int | None) -> Demand:
        return demand(cache=(n_ctx or 1024) // 10, n_ctx=n_ctx or 1024)

    def places_of(tried: ModelParams, needed: Demand) -> list[Place]:
        return placed(tried, needed, spots)

    params = fit(replace(PARAMS, fit_ctx=fit_ctx), of, spots, places_of, may_shrink=may_shrink)
    may_shrink = may_shrink and fit_ctx < 1024
    return fit_context(params, of, [room, host], places_of) if may_shrink else None, params.n_gpu_layers


def test_a_smaller_context_makes_room_if_nobody_asked_for_one() -> None:
    room = OUTPUT + COMPUTE + KEPT + 9 * (LAYER + 60)
    assert fitted_to(room, 256) == (512, -1)
    n_ctx, n_layers = fitted_to(room, 768)
    assert n_ctx == 768 and 0 < n_layers < 10
    for n_ctx, n_layers in (fitted_to(room, 256, may_shrink=False), fitted_to(room, 4096)):
        assert n_ctx is None and 0 < n_layers < 10
    assert fitted_to(OUTPUT, 256) == (None, 0)


def test_a_context_ends_where_the_memory_of_the_host_does() -> None:
    of_weights = sum(demand().tensors.values())
    assert fitted_to(0, 256, host=of_weights + COMPUTE + KEPT + 9 * 60) == (512, 0)
    assert fitted_to(0, 256, host=0) == (256, 0), "never less than what was asked for"
    assert fitted_to(10**6, 256, host=EMBEDDING) == (None, -1), "no layer is there"


def test_layers_that_stay_on_the_host_leave_room_for_a_longer_context() -> None:
    room = OUTPUT + COMPUTE + KEPT + 3 * (LAYER + 25) + 3 * 28
    assert fitted_to(room, 256) == (512, 4)


def test_a_tied_output_is_counted_once_where_the_embedding_is() -> None:
    of = demand(ties=True)
    gpu, host = placed(PARAMS, of, devices(10**6))
    assert gpu.weight_bytes == 9 * LAYER + EMBEDDING and host.weight_bytes == EMBEDDING
    moved = replace(PARAMS, override_tensor=(("^token_embd", "GPU0"),))
    gpu, host = placed(moved, of, devices(10**6))
    assert gpu.weight_bytes == 9 * LAYER + EMBEDDING and gpu.has_embedding and host.weight_bytes == 0


def test_prompts_copy_weights_of_the_host_to_the_first_gpu() -> None:
    spots = [replace(each, copies_weights=True) for each in devices(10**6, 10**6)]
    first, second, _ = placed(replace(PARAMS, n_cpu_moe=2), demand(experts=True), spots)
    assert (first.compute_bytes, second.compute_bytes) == (COMPUTE + EXPERT, COMPUTE + KEPT)


def test_devices_share_a_cache_of_experts() -> None:
    of = demand(experts=True, moe_cache_bytes=500)
    first, second, host = placed(replace(PARAMS, cpu_moe=True), of, devices(10**6, 10**6))
    assert (first.compute_bytes, second.compute_bytes, host.compute_bytes) == (COMPUTE + 250, COMPUTE + 250 + KEPT, 0)


def test_nothing_ever_needs_more_than_is_free() -> None:
    random = Random(5)
    for _ in range(300):
        of = demand(random.randint(1, 20), random.randint(0, 3), experts=random.random() < 0.5)
        remote = random.random() < 0.3
        spots = devices(*(random.randint(0, 9000) for _ in range(random.randint(1, 3))), remote=remote)
        _, found = fitted(of, spots)
        assert all(place.needed_bytes <= (place.spot.free_bytes or 0) or not place.needed_bytes for place in found[:-1])
        assert sorted(layer for place in found for layer in place.layers) == list(range(of.n_layer_all))
        on_devices = [layer for place in found[:-1] for layer in place.layers]
        assert on_devices == sorted(on_devices)
        assert sum(place.weight_bytes for place in found) == sum(of.tensors.values())


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (ModelParams(), True),
        (ModelParams(split_mode="none", main_gpu=1), True),
        (ModelParams(fit=False), False),
        (ModelParams(n_gpu_layers=5), False),
        (ModelParams(n_gpu_layers=-2), False),
        (ModelParams(tensor_split=(1, 2)), False),
        (ModelParams(n_cpu_moe=1), False),
        (ModelParams(cpu_moe=True), False),
        (ModelParams(override_tensor=[("x", "CPU")]), False),
        (ModelParams(split_mode="row"), False),
    ],
    ids=str,
)
def test_what_the_user_says_stays(params: ModelParams, expected: bool) -> None:
    assert is_open(params) is expected


def test_margins_are_of_the_devices_in_their_order() -> None:
    assert margins_of(ModelParams(), 2) == [1 << 30, 1 << 30]
    assert margins_of(ModelParams(fit_target=(1, 2)), 3) == [1 << 20, 2 << 20, 2 << 20]
    assert margins_of(ModelParams(fit_target=(1, 2)), 1) == [1 << 20]


def test_equal_devices_share_layers_equally() -> None:
    owners = layer_owners(ModelParams(), 53, 53, devices(*[64_397_850_948] * 6))
    assert [owners.count(i) for i in range(6)] == [9] * 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fit": "on"}, "fit must be True or False"),
        ({"fit_target": ()}, "fit_target must be numbers of MiB"),
        ({"fit_target": (-1,)}, "fit_target must be numbers of MiB"),
        ({"fit_ctx": 0}, "fit_ctx must be a number of tokens"),
        ({"n_gpu_layers": -3}, "n_gpu_layers must be a number of layers, -1 for as many"),
        ({"numa": "mirror"}, "numa must be one of off, distribute, isolate, numactl"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        ModelParams(**options)  # type: ignore[arg-type]
