#pragma once

// How long the client of an RPC server waits, and what it sends and receives at once. Sockets as transport.cpp has them.

#ifdef _WIN32
#    ifndef NOMINMAX
#        define NOMINMAX
#    endif
#    include <winsock2.h>
typedef SOCKET mtp_socket_t;
#else
#    include <sys/socket.h>
typedef int mtp_socket_t;
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#ifndef MSG_NOSIGNAL
#    define MSG_NOSIGNAL 0 // where a connection that is gone raises no signal, or SO_NOSIGPIPE prevents it
#endif

static constexpr int MTP_RPC_CONNECT_S = 5;   // to be connected, and for each answer until the build is known
static constexpr int MTP_RPC_ANSWER_S  = 600; // for an answer after that: the server may be computing a long prompt
static constexpr int MTP_RPC_GONE_S    = 20;  // until a machine that no longer answers at all is given up

static constexpr int      MTP_RPC_SPIN_US    = 5000; // a receive looks for data before its thread sleeps
static constexpr unsigned MTP_RPC_SPIN_CORES = 8;    // where there are as many

static constexpr size_t MTP_RPC_INBOX  = 64 * 1024;  // bytes
static constexpr size_t MTP_RPC_OUTBOX = 64 * 1024;  // bytes

// connect() that gives up after MTP_RPC_CONNECT_S. Remembers why it failed.
bool mtp_rpc_connect(mtp_socket_t fd, const struct sockaddr * addr, int len);

// For mtp_rpc_connect_error, where it does not come that far.
void mtp_rpc_set_connect_error(const char * why);

// Why the last connection of this thread was not made.
std::string mtp_rpc_connect_error();

// A receive fails after so many seconds without data.
void mtp_rpc_limit_wait(mtp_socket_t fd, int seconds);

// recv() that looks for data for a while before it lets the thread sleep, where there are cores for that: to be woken
// takes longer than a message does on one host.
int64_t mtp_rpc_receive(mtp_socket_t fd, char * data, size_t size);

// What has come from the other end of a connection: a system call takes all that is there, not a field of a message.
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

// What goes to the other end of a connection, together where it is small: each packet wakes a thread there. A Socket is
// llama.cpp's socket_t.
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
