#pragma once

// What goes to the other end of a connection, together where it is small: each packet wakes a thread there. A Socket is
// llama.cpp's socket_t.

#include <cstddef>
#include <cstdint>
#include <vector>

static constexpr size_t MTP_RPC_OUTBOX = 64 * 1024; // bytes

class mtp_rpc_outbox {
  public:
    // Sends what was there before if this one does not fit after it. False if the connection is lost.
    template <class Socket>
    bool add(Socket & socket, const std::vector<uint8_t> & head, const void * data, uint64_t size) {
        const size_t n = head.size() + sizeof(size) + size;
        if (bytes.size() + n > MTP_RPC_OUTBOX && !flush(socket)) {
            return false;
        }
        append(head.data(), head.size());
        append(&size, sizeof(size));
        if (n <= MTP_RPC_OUTBOX) {
            append(data, size);
            return true;
        }
        return send(socket) && socket.send_data(data, size) && socket.flush();
    }

    bool is_empty() const { return bytes.empty(); }

    template <class Socket> bool flush(Socket & socket) { return bytes.empty() || (send(socket) && socket.flush()); }

  private:
    void append(const void * data, size_t size) {
        bytes.insert(bytes.end(), (const uint8_t *) data, (const uint8_t *) data + size);
    }

    template <class Socket> bool send(Socket & socket) {
        const bool is_sent = socket.send_data(bytes.data(), bytes.size());
        bytes.clear();
        return is_sent;
    }

    std::vector<uint8_t> bytes;
};
