// The cells of a real KV cache. Nothing is computed: what counts is where rows lie.
//
//   test-cells GLM4MOE.gguf MIMO2.gguf

#include "check.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-model.h"
#include "mtp-memory.h"
#include "mtp-ubatch.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

static llama_model * g_plain;
static llama_model * g_window;

static llama_model * load(const char * path) {
    ggml_backend_dev_t no_devices[] = { nullptr };

    auto params     = llama_model_default_params();
    params.load_mtp = true;
    params.devices  = no_devices;
    return llama_model_load_from_file(path, params);
}

// n rows of a sequence
static std::vector<mtp_row> rows_of(llama_seq_id seq, llama_pos pos, int32_t n) {
    std::vector<mtp_row> rows;
    for (int32_t i = 0; i < n; ++i) {
        rows.push_back({ pos + i, pos + i, seq, false });
    }
    return rows;
}

struct cache {
    llama_kv_cache kv;

    explicit cache(uint32_t n_cells, uint32_t n_seq = 1, bool unified = true, uint32_t n_swa = 0) :
        kv(*g_plain, g_plain->hparams, GGML_TYPE_F32, GGML_TYPE_F32, false, false, unified, n_cells, n_seq, 1, n_swa,
           n_swa > 0 ? LLAMA_SWA_TYPE_STANDARD : LLAMA_SWA_TYPE_NONE, nullptr, nullptr, nullptr, nullptr) {}

    llama_ubatch ubatch(const std::vector<mtp_row> & rows) const { return mtp_ubatch_make(rows, 1, kv.get_n_stream()); }

    // as the trunk does. The cells of the rows; none if there is no room
    std::vector<uint32_t> decode(const std::vector<mtp_row> & rows) {
        const auto u      = ubatch(rows);
        const auto sinfos = kv.prepare({ u });
        if (sinfos.empty()) {
            return {};
        }
        kv.apply_ubatch(sinfos[0], u);
        return sinfos[0].idxs[0];
    }

    // as a head does
    std::vector<uint32_t> place(const std::vector<mtp_row> & rows) {
        const auto sinfo = kv.mtp_place(ubatch(rows));
        return sinfo.empty() ? std::vector<uint32_t>() : sinfo.idxs[0];
    }

    uint32_t n_used(llama_seq_id seq = 0) const { return kv.get_cells(seq).get_used(); }

    // everything that a call that fails must leave alone
    std::string state() const {
        std::string text;
        for (llama_seq_id seq = 0; seq < (llama_seq_id) kv.get_n_seq_max(); ++seq) {
            for (const auto & [pos, cell] : kv.get_cells(seq).seq_pos_get(seq)) {
                text += std::to_string(seq) + ":" + std::to_string(pos) + "@" + std::to_string(cell);
                text += kv.mtp.find(seq, pos) >= 0 ? "r " : " ";
            }
        }
        return text;
    }

    // whether a cell really holds what the cache says
    bool holds(llama_seq_id seq, llama_pos pos) const {
        const auto & sp = kv.get_cells(seq).seq_pos_get(seq);
        const auto   it = sp.lower_bound({ pos, 0 });
        return it != sp.end() && it->first == pos && kv.get_cells(seq).pos_get(it->second) == pos;
    }
};

static void a_head_writes_into_the_cells_of_the_trunk() {
    cache      c(16);
    const auto trunk = c.decode(rows_of(0, 0, 4));
    const auto state = c.state();
    CHECK_EQUAL(trunk.size(), 4u);
    CHECK(c.place(rows_of(0, 1, 3)) == std::vector<uint32_t>(trunk.begin() + 1, trunk.end()));
    CHECK(c.kv.mtp.empty());
    CHECK_EQUAL(c.state(), state);
}

static void new_rows_of_a_head_are_reserved_and_not_decoded() {
    cache      c(16);
    const auto trunk = c.decode(rows_of(0, 0, 4));
    const auto head  = c.place(rows_of(0, 3, 3));
    CHECK_EQUAL(head.size(), 3u);
    CHECK_EQUAL(head[0], trunk[3]);
    CHECK_EQUAL(c.kv.mtp.find(0, 3), -1);
    CHECK_EQUAL(c.kv.mtp.find(0, 4), head[1]);
    CHECK_EQUAL(c.kv.mtp.find(0, 5), head[2]);
    CHECK_EQUAL(c.n_used(), 6u);
    CHECK(c.holds(0, 5));
    CHECK_EQUAL(c.kv.seq_pos_max(0), 3);
    CHECK_EQUAL(c.kv.seq_pos_min(0), 0);

    // a second head finds the same cells
    CHECK(c.place(rows_of(0, 3, 3)) == head);
    CHECK_EQUAL(c.n_used(), 6u);
}

static void the_trunk_takes_reserved_cells_over() {
    cache c(16);
    c.decode(rows_of(0, 0, 4));
    const auto head  = c.place(rows_of(0, 4, 2));
    const auto trunk = c.decode(rows_of(0, 4, 3));
    CHECK_EQUAL(trunk.size(), 3u);
    CHECK_EQUAL(trunk[0], head[0]);
    CHECK_EQUAL(trunk[1], head[1]);
    CHECK(c.kv.mtp.empty());
    CHECK_EQUAL(c.kv.seq_pos_max(0), 6);
    CHECK_EQUAL(c.n_used(), 7u);
}

static void the_trunk_may_take_a_part() {
    cache c(16);
    c.decode(rows_of(0, 0, 4));
    const auto head = c.place(rows_of(0, 4, 3));
    CHECK_EQUAL(c.decode(rows_of(0, 4, 1)).at(0), head[0]);
    CHECK_EQUAL(c.kv.seq_pos_max(0), 4);
    CHECK_EQUAL(c.kv.mtp.find(0, 4), -1);
    CHECK_EQUAL(c.kv.mtp.find(0, 5), head[1]);
    c.kv.seq_rm(0, 5, -1);
    CHECK(c.kv.mtp.empty());
    CHECK_EQUAL(c.n_used(), 5u);
}

static void preparing_a_batch_changes_nothing() {
    cache c(16);
    c.decode(rows_of(0, 0, 4));
    c.place(rows_of(0, 4, 2));
    const auto state = c.state();
    CHECK(!c.kv.prepare({ c.ubatch(rows_of(0, 4, 1)), c.ubatch(rows_of(0, 5, 3)) }).empty());
    CHECK_EQUAL(c.state(), state);
    CHECK(c.kv.prepare({ c.ubatch(rows_of(0, 4, 3)), c.ubatch(rows_of(0, 7, 12)) }).empty()); // does not fit
    CHECK_EQUAL(c.state(), state);
}

static void dropping_positions_frees_reserved_cells() {
    cache c(16);
    c.decode(rows_of(0, 0, 6));
    c.place(rows_of(0, 6, 3));
    c.kv.seq_rm(0, 7, -1);
    CHECK_EQUAL(c.n_used(), 7u);
    CHECK(c.kv.mtp.find(0, 6) >= 0);
    c.kv.seq_rm(0, 4, -1);
    CHECK_EQUAL(c.n_used(), 4u);
    CHECK(c.kv.mtp.empty());
    CHECK_EQUAL(c.kv.seq_pos_max(0), 3);
    c.place(rows_of(0, 4, 3));
    c.kv.seq_rm(-1, 0, -1);
    CHECK_EQUAL(c.n_used(), 0u);
    CHECK(c.kv.mtp.empty());
    c.place(rows_of(0, 0, 2)); // nothing decoded yet
    CHECK_EQUAL(c.kv.seq_pos_max(0), -1);
    c.kv.clear(false);
    CHECK_EQUAL(c.n_used(), 0u);
    CHECK(c.kv.mtp.empty());
}

static void releasing_frees_what_is_reserved_and_no_more() {
    cache c(16, 2);
    c.decode(rows_of(0, 0, 3));
    c.decode(rows_of(1, 0, 2));
    const auto state = c.state();
    c.place(rows_of(0, 2, 3));
    c.place(rows_of(1, 2, 2));
    CHECK_EQUAL(c.n_used(), 9u);
    c.kv.mtp_release();
    CHECK_EQUAL(c.state(), state);
    CHECK(c.kv.mtp.empty());
    CHECK_EQUAL(c.kv.seq_pos_max(0), 2);
}

static void a_full_cache_refuses_and_stays_as_it_was() {
    cache c(8);
    c.decode(rows_of(0, 0, 5));
    c.place(rows_of(0, 5, 2));
    const auto state = c.state();
    CHECK(c.place(rows_of(0, 6, 3)).empty());
    CHECK_EQUAL(c.state(), state);
    CHECK(c.decode(rows_of(0, 5, 4)).empty());
    CHECK_EQUAL(c.state(), state);
    CHECK_EQUAL(c.decode(rows_of(0, 5, 3)).size(), 3u); // two of them are reserved
    CHECK_EQUAL(c.n_used(), 8u);
    CHECK(c.place(rows_of(0, 8, 1)).empty());
    CHECK_EQUAL(c.place(rows_of(0, 4, 4)).size(), 4u); // needs no new cell
    c.kv.seq_rm(0, 7, -1);
    CHECK_EQUAL(c.place(rows_of(0, 7, 1)).size(), 1u);
}

static void a_position_whose_cell_is_gone_is_refused() {
    cache c(16);
    c.decode(rows_of(0, 0, 6));
    c.kv.seq_rm(0, 0, 3);
    const auto state = c.state();
    CHECK(c.place(rows_of(0, 2, 2)).empty());
    CHECK_EQUAL(c.state(), state);
}

static void sequences_have_reserved_cells_of_their_own() {
    cache c(16, 3);
    c.decode(rows_of(0, 0, 3));
    c.decode(rows_of(2, 0, 3));
    auto rows = rows_of(0, 3, 2);
    for (const auto & row : rows_of(2, 2, 2)) {
        rows.push_back(row);
    }
    const auto head = c.place(rows); // both in one pass
    CHECK_EQUAL(head.size(), 4u);
    CHECK_EQUAL(c.n_used(), 9u);
    CHECK_EQUAL(c.kv.mtp.find(0, 4), head[1]);
    CHECK_EQUAL(c.kv.mtp.find(2, 2), -1);
    CHECK_EQUAL(c.kv.mtp.find(2, 3), head[3]);

    const auto other = c.decode(rows_of(1, 0, 4)); // takes nothing away
    CHECK_EQUAL(other.size(), 4u);
    CHECK(c.holds(0, 3) && c.holds(0, 4) && c.holds(2, 3));
    CHECK_EQUAL(c.kv.seq_pos_max(0), 2);
    CHECK_EQUAL(c.decode(rows_of(2, 3, 1)).at(0), head[3]);
    CHECK_EQUAL(c.kv.mtp.find(0, 3), head[0]);
}

static void streams_keep_their_cells_apart() {
    cache c(8, 2, false);
    c.decode(rows_of(0, 0, 3));
    c.decode(rows_of(1, 0, 5));
    const auto sinfo = c.kv.mtp_place(c.ubatch(rows_of(1, 4, 3)));
    CHECK_EQUAL(sinfo.n_stream(), 1u);
    CHECK_EQUAL(sinfo.strm.at(0), 1);
    CHECK_EQUAL(sinfo.s0, 1u);
    CHECK_EQUAL(sinfo.s1, 1u);
    CHECK_EQUAL(c.n_used(0), 3u);
    CHECK_EQUAL(c.n_used(1), 7u);
    CHECK_EQUAL(c.kv.seq_pos_max(1), 4);
    CHECK_EQUAL(c.place(rows_of(0, 3, 5)).size(), 5u);
    c.kv.mtp_release();
    CHECK_EQUAL(c.n_used(0), 3u);
    CHECK_EQUAL(c.n_used(1), 5u);
}

// attention on a device passes over whole spans of the cells of others
static void sequences_on_a_device_share_no_span() {
    constexpr uint32_t N_SPAN = 64;

    cache c(8 * N_SPAN, 4);
    c.kv.mtp.has_spans = true;

    const auto check = [&](size_t n_spans_shared) {
        std::map<uint32_t, std::set<llama_seq_id>> owners;
        for (llama_seq_id seq = 0; seq < 4; ++seq) {
            for (const auto & [pos, cell] : c.kv.get_cells(seq).seq_pos_get(seq)) {
                owners[cell / N_SPAN].insert(seq);
            }
        }
        const auto n =
            std::count_if(owners.begin(), owners.end(), [](const auto & of) { return of.second.size() > 1; });
        CHECK_EQUAL((size_t) n, n_spans_shared);
        return owners.size();
    };
    const auto round = [&](std::vector<std::pair<llama_seq_id, int32_t>> parts) {
        std::vector<mtp_row> rows;
        for (const auto & [seq, n] : parts) {
            const auto own = rows_of(seq, c.kv.seq_pos_max(seq) + 1, n);
            rows.insert(rows.end(), own.begin(), own.end());
        }
        return c.decode(rows).size() == rows.size();
    };

    CHECK(round({ { 0, 70 }, { 1, 10 }, { 3, 60 } }));
    CHECK_EQUAL(check(0), 4u);
    for (int i = 0; i < 10; ++i) {
        CHECK(round({ { 0, 1 }, { 1, 4 }, { 3, 2 } }));
        c.kv.seq_rm(1, c.kv.seq_pos_max(1) - 1, -1); // drafts that are rejected
        c.place(rows_of(3, c.kv.seq_pos_max(3) + 1, 2));
        check(0);
    }
    CHECK_EQUAL(check(0), 5u); // the last sequence has begun another
    CHECK_EQUAL(c.n_used(), 70u + 10u + 10u + 20u + 60u + 20u + 2u);

    // a copy shares its cells, but not those that come after them
    c.kv.seq_cp(1, 2, -1, -1);
    CHECK(round({ { 1, 3 }, { 2, 3 } }));
    CHECK_EQUAL(check(1), 6u);

    // where no span is free, any cell will do, up to the last
    CHECK(round({ { 1, 60 } }));
    CHECK(round({ { 0, 46 } }));
    CHECK(round({ { 0, 1 } }));
    check(1);
    while (c.n_used() < 8 * N_SPAN) {
        CHECK(round({ { (llama_seq_id) (c.n_used() % 4), 1 } }));
    }
    CHECK(!round({ { 0, 1 } }));

    c.kv.seq_rm(0, 0, -1);
    CHECK(round({ { 0, 1 } }));
}

// operations of llama.cpp that know nothing of reservations see none
static void copying_keeping_and_shifting_release_first() {
    cache      c(32, 3);
    const auto reserve = [&] {
        c.kv.clear(false);
        c.decode(rows_of(0, 0, 4));
        c.decode(rows_of(1, 0, 2));
        c.place(rows_of(0, 4, 2));
        c.place(rows_of(1, 2, 1));
    };

    reserve();
    c.kv.seq_cp(0, 2, -1, -1);
    CHECK(c.kv.mtp.empty());
    CHECK_EQUAL(c.kv.seq_pos_max(2), 3);
    CHECK_EQUAL(c.kv.seq_pos_max(0), 3);
    CHECK_EQUAL(c.kv.seq_pos_max(1), 1);
    CHECK_EQUAL(c.n_used(), 6u);

    reserve();
    c.kv.seq_keep(0);
    CHECK(c.kv.mtp.empty());
    CHECK_EQUAL(c.kv.seq_pos_max(0), 3);
    CHECK_EQUAL(c.kv.seq_pos_max(1), -1);
    CHECK_EQUAL(c.n_used(), 4u);

    reserve();
    c.kv.seq_add(0, 0, -1, 10);
    CHECK(c.kv.mtp.empty());
    CHECK_EQUAL(c.kv.seq_pos_min(0), 10);
    CHECK_EQUAL(c.kv.seq_pos_max(0), 13);
    CHECK_EQUAL(c.kv.seq_pos_max(1), 1);

    reserve();
    c.kv.seq_div(0, 0, -1, 2);
    CHECK(c.kv.mtp.empty());
    CHECK_EQUAL(c.kv.seq_pos_max(0), 1);
    CHECK_EQUAL(c.n_used(), 6u);
}

// What lies before the window of a sequence may be overwritten: counted from its decoded tail, not from what a head has
// reserved, which may all be rejected.
static void a_reserved_tail_does_not_move_the_window() {
    constexpr int32_t N_SWA = 6;
    constexpr int32_t N_SEQ = 3;

    cache     c(48, N_SEQ, true, N_SWA);
    llama_pos n_decoded[N_SEQ] = {};

    const auto check_window = [&](llama_seq_id seq) {
        // the next row sees N_SWA positions, itself among them
        for (llama_pos pos = std::max(0, n_decoded[seq] - N_SWA + 1); pos < n_decoded[seq]; ++pos) {
            CHECK(c.holds(seq, pos));
        }
    };

    for (llama_seq_id seq = 0; seq < N_SEQ; ++seq) {
        n_decoded[seq] = 5 + seq;
        c.decode(rows_of(seq, 0, n_decoded[seq]));
    }
    for (int32_t round = 0; round < 60; ++round) {
        const llama_seq_id seq = round % N_SEQ;

        CHECK_EQUAL(c.place(rows_of(seq, n_decoded[seq], 5)).size(), 5u);
        for (llama_seq_id s = 0; s < N_SEQ; ++s) {
            check_window(s);
            CHECK_EQUAL(c.kv.seq_pos_max(s), n_decoded[s] - 1);
        }
        for (const auto & [at, cell] : c.kv.mtp.all()) {
            CHECK(c.holds(at.first, at.second) && c.kv.get_cells(at.first).seq_has(cell, at.first));
        }
        // another sequence's trunk pass while this one's tail is reserved, and then a rollback
        const llama_seq_id other    = (seq + 1) % N_SEQ;
        const int32_t      accepted = 1 + round % 3;
        c.kv.seq_rm(other, n_decoded[other], -1);
        CHECK_EQUAL(c.decode(rows_of(other, n_decoded[other], accepted)).size(), (size_t) accepted);
        n_decoded[other] += accepted;
        for (llama_seq_id s = 0; s < N_SEQ; ++s) {
            check_window(s);
        }
    }
    CHECK(c.n_used() <= 48u);
    CHECK(c.kv.seq_pos_min(0) > 0); // the cache did go round
}

static void a_placed_ubatch_is_not_applied_again() {
    llama_kv_cache_iswa memory(*g_window, GGML_TYPE_F32, GGML_TYPE_F32, false, false, false, true, 64, 1, 8, 1, nullptr,
                               nullptr, nullptr, nullptr);
    const auto          ubatch = mtp_ubatch_make(rows_of(0, 0, 2), 1, 1);
    const auto          mctx   = mtp_memory_place(&memory, ubatch);
    CHECK_EQUAL((int) mctx->get_status(), (int) LLAMA_MEMORY_STATUS_SUCCESS);
    for (auto * kv : { memory.get_base(), memory.get_swa() }) {
        CHECK_EQUAL(kv->get_cells(0).get_used(), 2u);
        CHECK(kv->mtp.find(0, 1) >= 0);
    }
    {
        const mtp_memory_scope placed((llama_memory_i *) &memory, &mtp_reservation::placed, true);
        mctx->apply();
        CHECK(memory.get_base()->mtp.placed && memory.get_swa()->mtp.placed);
    }
    for (auto * kv : { memory.get_base(), memory.get_swa() }) {
        CHECK(!kv->mtp.placed);
        CHECK(kv->mtp.find(0, 1) >= 0);
    }
    mctx->apply(); // now it is: as the trunk's
    CHECK(memory.get_base()->mtp.empty() && memory.get_swa()->mtp.empty());
    CHECK_EQUAL(memory.seq_pos_max(0), 1);
}

static void a_pass_that_fits_one_of_two_caches_is_dropped_as_a_draft_is() {
    // the cache of the window has 256 cells; those that two sequences share are never overwritten
    llama_kv_cache_iswa memory(*g_window, GGML_TYPE_F32, GGML_TYPE_F32, false, false, false, true, 512, 2, 8, 1,
                               nullptr, nullptr, nullptr, nullptr);
    const auto          prompt = mtp_ubatch_make(rows_of(0, 0, 254), 1, 1);
    for (auto * kv : { memory.get_base(), memory.get_swa() }) {
        kv->apply_ubatch(kv->prepare({ prompt }).at(0), prompt);
    }
    memory.seq_cp(0, 1, -1, -1);

    const auto one = mtp_memory_place(&memory, mtp_ubatch_make(rows_of(0, 254, 1), 1, 1));
    CHECK_EQUAL((int) one->get_status(), (int) LLAMA_MEMORY_STATUS_SUCCESS);

    const auto more = mtp_memory_place(&memory, mtp_ubatch_make(rows_of(0, 254, 3), 1, 1));
    CHECK_EQUAL((int) more->get_status(), (int) LLAMA_MEMORY_STATUS_FAILED_PREPARE);
    for (auto * kv : mtp_memory_caches(&memory)) {
        CHECK(kv->seq_rm(0, 255, -1));
        CHECK_EQUAL(kv->get_cells(0).get_used(), 255u);
        CHECK(kv->mtp.find(0, 254) >= 0); // of the pass before
        CHECK_EQUAL(kv->mtp.find(0, 255), -1);
        CHECK_EQUAL(kv->seq_pos_max(0), 253);
    }
}

static void a_cache_can_be_shared() {
    cache c(8);
    CHECK(mtp_memory_can_share(&c.kv));
    CHECK(!mtp_memory_can_share(nullptr));
}

// Whether a row sees a cell, by their positions alone.
static bool is_seen(const llama_kv_cells & cells, uint32_t cell, const llama_ubatch & u, uint32_t row, uint32_t n_swa) {
    if (cells.is_empty(cell) || !cells.seq_has(cell, u.seq_id[row][0])) {
        return false;
    }
    const llama_pos pos = cells.pos_get(cell);
    if (pos > u.pos[row] || (n_swa > 0 && u.pos[row] - pos >= (llama_pos) n_swa)) {
        return false;
    }
    const auto & place = cells.ext_get(cell);
    const auto   at    = std::make_pair(u.pos[row + u.n_tokens], u.pos[row + 2 * u.n_tokens]);
    return pos < u.pos[row] || std::make_pair(place.y, place.x) <= at;
}

// Rows of text, and then of an image: these share a position, and lie in lines of three.
static llama_ubatch rows_with_an_image(std::vector<mtp_row> rows, llama_seq_id seq, llama_pos pos, uint32_t n_image) {
    const size_t n_text = rows.size();
    for (uint32_t i = 0; i < n_image; ++i) {
        rows.push_back({ 0, pos, seq, false });
    }
    auto u = mtp_ubatch_make(rows, 4, 1);
    for (uint32_t i = 0; i < n_image; ++i) {
        u.pos[n_text + i + u.n_tokens]     = pos + i / 3;
        u.pos[n_text + i + 2 * u.n_tokens] = pos + i % 3;
    }
    return u;
}

static void masks_show_what_positions_say(uint32_t n_swa, uint32_t n_kv, ggml_type type) {
    cache c(64, 3, true, n_swa);

    const auto pass = [&](const llama_ubatch & u) {
        const auto sinfos = c.kv.prepare({ u });
        CHECK_EQUAL(sinfos.size(), 1u);
        c.kv.apply_ubatch(sinfos[0], u);

        const ggml_context_ptr        ctx(ggml_init({ ggml_tensor_overhead(), nullptr, true }));
        ggml_tensor *                 mask = ggml_new_tensor_4d(ctx.get(), type, n_kv, u.n_tokens, 1, 1);
        const ggml_backend_buffer_ptr buf(
            ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), ggml_backend_cpu_buffer_type()));
        c.kv.set_input_kq_mask(mask, &u, true);

        const auto & cells   = c.kv.get_cells(0);
        size_t       n_seen  = 0;
        size_t       n_wrong = 0;
        for (uint32_t row = 0; row < u.n_tokens; ++row) {
            for (uint32_t cell = 0; cell < n_kv; ++cell) {
                const size_t at    = row * n_kv + cell;
                const float  value = type == GGML_TYPE_F16 ? ggml_fp16_to_fp32(((ggml_fp16_t *) mask->data)[at]) :
                                                             ((float *) mask->data)[at];
                const bool   seen  = is_seen(cells, cell, u, row, n_swa);
                n_seen += seen;
                n_wrong += value != (seen ? 0.0f : -INFINITY);
            }
        }
        CHECK_EQUAL(n_wrong, 0u);
        CHECK(n_seen > 0);
    };
    const auto text = [&](std::vector<mtp_row> rows) {
        pass(mtp_ubatch_make(rows, 4, 1));
    };
    auto rows = rows_of(0, 0, 12);
    for (const auto & row : rows_of(1, 0, 5)) {
        rows.push_back(row);
    }
    text(rows);
    c.kv.seq_rm(0, 9, -1); // its cells go to others
    c.kv.seq_cp(1, 2, 0, 4);
    text({ { 0, 5, 1, false }, { 0, 9, 0, false }, { 0, 6, 1, false }, { 0, 10, 0, false }, { 0, 11, 0, false } });
    pass(rows_with_an_image({ { 0, 7, 1, false }, { 0, 4, 2, false } }, 1, 8, 8));
    text({ { 0, 11, 1, false }, { 0, 12, 1, false }, { 0, 12, 0, false }, { 0, 5, 2, false } });
}

static void masks_show_what_positions_say() {
    for (const uint32_t n_swa : { 0, 4 }) {
        for (const ggml_type type : { GGML_TYPE_F16, GGML_TYPE_F32 }) {
            masks_show_what_positions_say(n_swa, 64, type);
            masks_show_what_positions_say(n_swa, 16, type); // cells after them are left out
        }
    }
}

int main(int argc, char ** argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: test-cells GLM4MOE.gguf MIMO2.gguf\n");
        return 2;
    }
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    g_plain  = load(argv[1]);
    g_window = load(argv[2]);
    if (!g_plain || !g_window) {
        fprintf(stderr, "the models do not load\n");
        return 1;
    }

    RUN(a_head_writes_into_the_cells_of_the_trunk);
    RUN(new_rows_of_a_head_are_reserved_and_not_decoded);
    RUN(the_trunk_takes_reserved_cells_over);
    RUN(the_trunk_may_take_a_part);
    RUN(preparing_a_batch_changes_nothing);
    RUN(dropping_positions_frees_reserved_cells);
    RUN(releasing_frees_what_is_reserved_and_no_more);
    RUN(a_full_cache_refuses_and_stays_as_it_was);
    RUN(a_position_whose_cell_is_gone_is_refused);
    RUN(sequences_have_reserved_cells_of_their_own);
    RUN(streams_keep_their_cells_apart);
    RUN(sequences_on_a_device_share_no_span);
    RUN(copying_keeping_and_shifting_release_first);
    RUN(a_reserved_tail_does_not_move_the_window);
    RUN(a_placed_ubatch_is_not_applied_again);
    RUN(a_pass_that_fits_one_of_two_caches_is_dropped_as_a_draft_is);
    RUN(a_cache_can_be_shared);
    RUN(masks_show_what_positions_say);

    llama_model_free(g_plain);
    llama_model_free(g_window);
    llama_backend_free();
    return g_n_failed > 0;
}
