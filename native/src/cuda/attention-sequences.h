#pragma once

// The parameter of ggml_flash_attn_ext that says how many sequences its rows belong to, each of which sees a part of the
// cells. 0: nobody has said so.
static constexpr int MTP_PARAM_SEQUENCES = 5;
