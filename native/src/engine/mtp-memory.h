#pragma once

// Which kinds of llama.cpp memory can host the heads with the trunk, and how a head's rows get their cells.

#include "ggml-backend.h"
#include "llama-kv-cache.h"

#include <array>
#include <memory>
#include <string>
#include <vector>

// A cache for the heads alone, as llama.cpp makes it for a context of their own. Throws if memory runs out.
std::unique_ptr<llama_memory_i> mtp_memory_create_own(const llama_model & model, llama_memory_params params,
                                                      llama_cparams cparams);

// The memory of a context by the layers of another model, an assistant's, which read what the context's have stored there
// and store nothing.
std::unique_ptr<llama_memory_i> mtp_memory_create_view(const llama_model & assistant, llama_memory_params params,
                                                       llama_context & ctx);

// The part that holds K/V by position, where the heads live: of a memory, and of its context for a ubatch.
llama_memory_i *               mtp_memory_attention(llama_memory_i * memory);
const llama_memory_context_i * mtp_memory_attention(const llama_memory_context_i * mctx);

// What heads see of a context: K/V, and the keys of an index where these are next to it.
const llama_memory_context_i * mtp_memory_of_heads(const llama_memory_context_i * mctx);

// The caches of K/V by position: several where layers with a window have their own, or where the keys of an index are next
// to K. nullptr has none.
std::vector<llama_kv_cache *> mtp_memory_caches(llama_memory_i * memory);

// Sets a member of the reservations of all caches.
template <typename T> void mtp_memory_set(llama_memory_i * memory, T mtp_reservation::* member, T value) {
    for (auto * kv : mtp_memory_caches(memory)) {
        kv->mtp.*member = value;
    }
}

// How many cells of each of its caches a ubatch's attention looks at: graphs are built for that number.
std::array<uint32_t, 2> mtp_memory_n_kv(const llama_memory_context_i * mctx);

// Kinds of memory. Plain: K/V by position alone, of which any positions can go at any time. Hybrid: recurrent states and
// K/V of all positions; sequences are computed together if they have equally many rows. With snapshots of a state a
// memory goes back by these, in addition to K/V or instead of it.
bool mtp_memory_is_plain(llama_memory_i * memory);
bool mtp_memory_is_hybrid(llama_memory_i * memory);
bool mtp_memory_has_snapshots(llama_memory_i * memory);
bool mtp_memory_can_share(llama_memory_i * memory); // whether the heads can live in its cells

// Whether a context's memory of this model goes back over rejected drafts: recurrent states do by snapshots, which
// llama.cpp keeps of some architectures alone.
bool mtp_memory_goes_back(const llama_model & model);

uint32_t mtp_memory_n_free(llama_memory_i * memory, llama_seq_id seq); // cells of a sequence's stream that nobody holds
bool mtp_memory_is_alone(llama_memory_i * memory, llama_seq_id seq);   // no other sequence shares the cells of this one

// Why backends cannot move positions; "": they can, if the memory can.
std::string mtp_memory_shift_obstacle(llama_memory_i * memory, llama_context & ctx,
                                      const std::vector<ggml_backend_t> & backends);

// whether positions have moved whose keys have not
bool mtp_memory_has_shift(llama_memory_i * memory);

// Cells for rows that heads run on; status FAILED_PREPARE if the cache is full.
llama_memory_context_ptr mtp_memory_place(llama_memory_i * memory, const llama_ubatch & ubatch);

// Throws where a device cannot keep the types of the K/V cache.
void mtp_memory_check_types(const llama_model & model, const llama_context_params & params);

// While it lives, the reservations of all caches have a member set to a value: `placed`, or what a head has seen.
template <typename T> class mtp_memory_scope {
  public:
    mtp_memory_scope(llama_memory_i * memory, T mtp_reservation::* member, T value) : memory(memory), member(member) {
        mtp_memory_set(memory, member, value);
    }

    ~mtp_memory_scope() { mtp_memory_set(memory, member, {}); }

  private:
    llama_memory_i * memory;
    T mtp_reservation::* member;
};
