#pragma once

// The graphs that an RPC server keeps, by their ids, so that each is sent once. Client and server have a list each, which
// are the same, as both see the same calls in the same order. Knows ids and buffers; no graphs.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_set>

// The graphs of a device: as many as a session keeps. A graph takes the server about 1 MB.
static constexpr size_t MTP_RPC_GRAPHS_MAX = 96;

// T: what an end keeps of a graph
template <class T> class mtp_rpc_graphs {
  public:
    // nullptr if it is not kept
    T * find(uint64_t id) {
        const auto it = std::find_if(entries.begin(), entries.end(), [&](const entry & e) { return e.id == id; });
        if (it == entries.end()) {
            return nullptr;
        }
        entries.splice(entries.begin(), entries, it);
        return &it->graph;
    }

    // A graph that is in these buffers. The one that was used least recently gives way.
    T & add(uint64_t id, std::unordered_set<uint64_t> buffers) {
        if (entries.size() >= MTP_RPC_GRAPHS_MAX) {
            entries.pop_back();
        }
        entries.push_front({ id, std::move(buffers), T() });
        return entries.front().graph;
    }

    void drop_users_of(uint64_t buffer) {
        entries.remove_if([&](const entry & e) { return e.buffers.count(buffer) > 0; });
    }

  private:
    struct entry {
        uint64_t                     id;
        std::unordered_set<uint64_t> buffers;
        T                            graph;
    };

    std::list<entry> entries; // the one that was used last comes first
};
