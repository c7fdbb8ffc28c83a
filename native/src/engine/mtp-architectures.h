#pragma once

// The architectures whose heads can draft, and on what conditions. pymtp/gguf/architectures.py repeats the list, for
// files that are only read; a test compares the two. Graphs abort on what they do not support, so every condition is
// checked here first. Knows models; no contexts.

struct llama_model;

// Why llama.cpp cannot run the MTP heads of a model, or its assistant if one is given; nullptr if it can.
const char * mtp_obstacle(const llama_model & model, const llama_model * assistant);
