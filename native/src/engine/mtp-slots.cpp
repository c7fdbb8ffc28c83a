#include "mtp-slots.h"

#include <algorithm>
#include <utility>

static constexpr size_t MTP_SLOTS_MAX = 96;

void mtp_slots::exchange(mtp_slot & slot) {
    std::swap(seat.sched, slot.sched);
    std::swap(seat.results, slot.results);
    std::swap(seat.active, slot.active);
}

void mtp_slots::select(mtp_slot & slot) {
    slot.t_used = ++t;
    if (&slot == cur) {
        return;
    }
    exchange(*cur);
    exchange(slot);
    cur = &slot;
}

void mtp_slots::clear() {
    select(own);
    slots.clear();
}

void mtp_slots::evict_oldest() {
    const auto oldest = std::min_element(slots.begin(), slots.end(),
                                         [](const auto & a, const auto & b) { return a->t_used < b->t_used; });
    seat.synchronize();
    if (cur == oldest->get()) {
        select(own);
    }
    slots.erase(oldest);
}

void mtp_slots::drop_readers(const void * memory) {
    const auto is_reader = [&](const mtp_slot & slot) {
        return slot.reads == memory;
    };
    if (!memory) {
        return;
    }
    seat.synchronize();
    if (is_reader(*cur)) {
        select(own);
    }
    slots.erase(std::remove_if(slots.begin(), slots.end(), [&](const auto & slot) { return is_reader(*slot); }),
                slots.end());
}

mtp_slot & mtp_slots::find(std::vector<int64_t> key, std::array<uint32_t, 2> n_kv, size_t max_nodes, bool has_outputs,
                           const void * reads) {
    // Of graphs that only differ in how many cells they look at, few are kept: texts that begin again need the smaller
    // ones again.
    mtp_slot * outworn = nullptr;
    int32_t    n_alike = 0;
    for (auto & slot : slots) {
        if (slot->key != key) {
            continue;
        }
        if (slot->n_kv == n_kv) {
            return *slot;
        }
        if (n_alike++ == 0 || slot->t_used < outworn->t_used) {
            outworn = slot.get();
        }
    }
    if (n_alike >= n_alike_max) {
        outworn->n_kv = n_kv;
        return *outworn;
    }
    if (slots.size() == MTP_SLOTS_MAX) {
        evict_oldest();
    }

    auto slot = std::make_unique<mtp_slot>();

    slot->key   = std::move(key);
    slot->n_kv  = n_kv;
    slot->reads = reads;
    // llama.cpp takes one of two, and a slot's graphs all have outputs, or none
    slot->results[has_outputs].reset(new llm_graph_result(max_nodes));
    slot->sched.reset(ggml_backend_sched_new(const_cast<ggml_backend_t *>(seat.backends.data()),
                                             const_cast<ggml_backend_buffer_type_t *>(seat.bufts.data()),
                                             seat.backends.size(), max_nodes, false, seat.op_offload));

    slots.push_back(std::move(slot));
    return *slots.back();
}

size_t mtp_slots::compute_bytes() const {
    size_t res = 0;

    const auto add = [&](ggml_backend_sched_t sched) {
        for (auto * backend : seat.backends) {
            res += sched ? ggml_backend_sched_get_buffer_size(sched, backend) : 0;
        }
    };

    // the slot in use has lent its scheduler to the context
    add(seat.sched.get());
    add(own.sched.get());
    for (const auto & slot : slots) {
        add(slot->sched.get());
    }
    return res;
}
