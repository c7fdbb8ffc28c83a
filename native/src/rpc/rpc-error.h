#pragma once

#include <stdexcept>

// A server cannot be used, or not any longer. The message names it.
struct mtp_rpc_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};
