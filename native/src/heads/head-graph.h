#pragma once

// Graphs of MTP heads that llama.cpp has none for: what joins token and hidden state, and what comes after the block, is
// here; so is the block that most have (head-block.cpp), other blocks are in files of their own. They take the
// place of what llama.cpp calls graph_mtp, so the engine and a context of llama.cpp's own type MTP run them alike. Knows
// models; not the engine, which includes this folder.

#include "llama-graph.h"
#include "llama-model.h"

#include <memory>
#include <vector>

struct llama_model_loader;

// A head of pymtp's own form, see head-generic.cpp: finds it in a file, and hides its layer from the architecture's own code
// until its hyperparameters are loaded.
void head_generic_find(const llama_model_loader & ml, llama_hparams & hparams);
void head_generic_load_hparams(const llama_model_loader & ml, llama_hparams & hparams);

// Whether llama.cpp's own code skips the heads of an architecture, or does not see them: they are loaded and run here.
bool head_is_added(const llama_hparams & hparams, llm_arch arch);

// What follows an architecture's own hyperparameters: whether heads have a window.
void head_load_hparams(llama_model_loader & ml, llm_arch arch, llama_hparams & hparams);

// Calls the architecture's own load_arch_tensors(), and loads what that does not see.
void head_load_tensors(llama_model_loader & ml, llama_model_base & model);

// Whether a graph must not crop the rows of the trunk, whose hidden states an added head reads.
bool head_needs_all_rows(const llm_graph_context & graph);

// Of rows that are about to meet the output matrix those that logits are wanted of; all of them are handed out, as the
// hidden states that an added head reads. cur, [n_embd, n_tokens], before other products and for other heads.
ggml_tensor * head_states(const llm_graph_context & graph, const ggml_tensor * weight, ggml_tensor * cur);

// A head's graph if that is asked for and is one of these, else the architecture's own.
std::unique_ptr<llm_graph_context> head_graph_build(const llama_model & model, const llm_graph_params & params);

// What the rotation of a head of pymtp's own form makes of rows of a query or key at a position: [n_embd_head_k, n_rows].
void head_generic_rotate(const llama_model & model, const llama_cparams & cparams, llama_pos pos,
                         std::vector<float> & rows);

// What a head reads of each row: the embedding of its token, [n_embd, n_tokens], and a hidden state, [n_embd_out,
// n_tokens].
struct head_rows {
    ggml_tensor * embd;
    ggml_tensor * hidden;
};

head_rows head_rows_build(const llm_graph_context & graph, const llama_model & model, const llama_layer & layer,
                          int il);

// Rotates queries or keys of a block, with the model's sections if it has any.
ggml_tensor * head_rope(ggml_context * ctx, const llama_hparams & hparams, const llama_cparams & cparams, int il,
                        ggml_tensor * cur, ggml_tensor * inp_pos, ggml_tensor * factors);

class head_graph : public llm_graph_context {
  protected:
    head_graph(const llama_model & model, const llm_graph_params & params);

    const llama_model & model;
    const int           il; // of the head's block
    const llama_layer & layer;

    // [n_embd, n_tokens] the block's input, which is eh_proj of the norms of token embedding and hidden state, and its
    // norm, which attention takes
    ggml_tensor * inpL;
    ggml_tensor * attn_input;
    ggml_tensor * inp_out_ids;

    // The norm of cur; cur if the file has none.
    ggml_tensor * build_norm_if(ggml_tensor * norm, ggml_tensor * cur, const char * name) const;

    // Gated by SiLU: dense, or experts and a shared one if the block has a router. Without a gate of its own it is in ffn_up.
    ggml_tensor * build_feed_forward(ggml_tensor * cur) const;

    // All that follows attention: feed-forward, hidden states and logits, with the norms before and after that the file
    // has. cur: what attention adds to inpL; norm: of the output, the trunk's if it is nullptr
    void build_rest(ggml_tensor * cur, ggml_tensor * norm);
};

std::unique_ptr<llm_graph_context> head_graph_block(const llama_model & model, const llm_graph_params & params);
std::unique_ptr<llm_graph_context> head_graph_latent(const llama_model & model, const llm_graph_params & params);
std::unique_ptr<llm_graph_context> head_graph_qwen4exp(const llama_model & model, const llm_graph_params & params);
