#pragma once

// How long the client of an RPC server waits. Sockets as transport.cpp has them.

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

#include <cstddef>
#include <cstdint>
#include <string>

#ifndef MSG_NOSIGNAL
#    define MSG_NOSIGNAL 0 // where a connection that is gone raises no signal, or SO_NOSIGPIPE prevents it
#endif

static constexpr int MTP_RPC_CONNECT_S = 5;   // to be connected, and for each answer until the build is known
static constexpr int MTP_RPC_ANSWER_S  = 600; // for an answer after that: the server may be computing a long prompt
static constexpr int MTP_RPC_GONE_S    = 20;  // until a machine that no longer answers at all is given up

static constexpr int      MTP_RPC_SPIN_US    = 5000; // a receive looks for data before its thread sleeps
static constexpr unsigned MTP_RPC_SPIN_CORES = 8;    // where there are as many

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
