#include "rpc-socket.h"

#ifndef _WIN32
#    include <fcntl.h>
#    include <netinet/in.h>
#    include <netinet/tcp.h>
#    include <poll.h>
#    include <sys/time.h>
#endif

#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

static thread_local std::string g_error;

void mtp_rpc_set_connect_error(const char * why) {
    g_error = why;
}

std::string mtp_rpc_connect_error() {
    return g_error;
}

#ifdef _WIN32

void mtp_rpc_limit_wait(mtp_socket_t fd, int seconds) {
    const DWORD ms = 1000 * seconds;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, (const char *) &ms, sizeof(ms));
}

bool mtp_rpc_connect(mtp_socket_t fd, const struct sockaddr * addr, int len) {
    if (connect(fd, addr, len) != 0) {
        g_error = std::system_category().message(WSAGetLastError());
        return false;
    }
    mtp_rpc_limit_wait(fd, MTP_RPC_CONNECT_S);
    return true;
}

int64_t mtp_rpc_receive(mtp_socket_t fd, char * data, size_t size) {
    return recv(fd, data, int(size), 0);
}

#else

void mtp_rpc_limit_wait(mtp_socket_t fd, int seconds) {
    const timeval limit = { seconds, 0 };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
}

// a machine that is gone says nothing: the kernel asks it
static void watch_peer(mtp_socket_t fd) {
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
#    ifdef SO_NOSIGPIPE
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof(on));
#    endif
#    ifdef TCP_USER_TIMEOUT
    const int every_s = MTP_RPC_GONE_S / 4;
    const int n_times = 4;
    const int gone_ms = 1000 * MTP_RPC_GONE_S;
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &every_s, sizeof(every_s));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof(every_s));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &n_times, sizeof(n_times));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &gone_ms, sizeof(gone_ms));
#    endif
}

// 0, or an errno
static int connect_within(mtp_socket_t fd, const struct sockaddr * addr, int len) {
    if (connect(fd, addr, len) == 0) {
        return 0;
    }
    if (errno != EINPROGRESS) {
        return errno;
    }
    pollfd wait = { fd, POLLOUT, 0 };
    if (poll(&wait, 1, 1000 * MTP_RPC_CONNECT_S) <= 0) {
        return ETIMEDOUT;
    }
    int       error = 0;
    socklen_t size  = sizeof(error);
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

bool mtp_rpc_connect(mtp_socket_t fd, const struct sockaddr * addr, int len) {
    const int flags = fcntl(fd, F_GETFL, 0);
    fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    const int error = connect_within(fd, addr, len);
    fcntl(fd, F_SETFL, flags);
    if (error) {
        g_error = std::generic_category().message(error);
        return false;
    }
    watch_peer(fd);
    mtp_rpc_limit_wait(fd, MTP_RPC_CONNECT_S);
    return true;
}

int64_t mtp_rpc_receive(mtp_socket_t fd, char * data, size_t size) {
    using clock = std::chrono::steady_clock;

    static const bool has_cores = std::thread::hardware_concurrency() >= MTP_RPC_SPIN_CORES;
    const auto        until     = clock::now() + std::chrono::microseconds(MTP_RPC_SPIN_US);

    while (has_cores && clock::now() < until) {
        const ssize_t n = recv(fd, data, size, MSG_DONTWAIT);
        if (n >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
            return n;
        }
        std::this_thread::yield();
    }
    return recv(fd, data, size, 0);
}

#endif
