#pragma once

// What has come from the other end of a connection: a system call takes all that is there, not a field of a message.

#include "rpc-socket.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

static constexpr size_t MTP_RPC_INBOX = 64 * 1024; // bytes

class mtp_rpc_inbox {
  public:
    // As recv(): how many bytes it wrote, 0 at the end of the connection, less after an error.
    int64_t receive(mtp_socket_t fd, void * data, size_t size) {
        if (begin == end) {
            if (size >= bytes.size()) {
                return recv(fd, (char *) data, size, 0);
            }
            const int64_t n = mtp_rpc_receive(fd, bytes.data(), bytes.size());
            if (n <= 0) {
                return n;
            }
            begin = 0;
            end   = n;
        }
        const size_t n = std::min(size, end - begin);
        memcpy(data, bytes.data() + begin, n);
        begin += n;
        return n;
    }

  private:
    std::array<char, MTP_RPC_INBOX> bytes;
    size_t                          begin = 0;
    size_t                          end   = 0;
};
