#pragma once

// llama.cpp's asserts, which end the process, as exceptions: where a damaged file is what fails them. Not while graphs
// are computed, where other threads wait for the one that fails.

// While one of these lives, a failed assert of its thread throws std::runtime_error.
class pymtp_catch_asserts {
  public:
    pymtp_catch_asserts();
    ~pymtp_catch_asserts();

    pymtp_catch_asserts(const pymtp_catch_asserts &)             = delete;
    pymtp_catch_asserts & operator=(const pymtp_catch_asserts &) = delete;

    // the last one that failed, in words; "" if none has
    const char * failed() const;
};
