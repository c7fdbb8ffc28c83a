// pymtp: images in prompts. A projector (llama.cpp's mmproj) turns an image into rows of embeddings, which the trunk and
// its heads take in the place of tokens. Handles and errors as in pymtp.h.

#ifndef PYMTP_IMAGES_H
#define PYMTP_IMAGES_H

#include "pymtp.h"

#ifdef __cplusplus
extern "C" {
#endif

// [cffi begin]

struct pymtp_projector;
struct pymtp_image;
struct pymtp_media;

enum pymtp_image_limit {
    PYMTP_IMAGE_BYTES_MAX  = 1 << 26, // of a file
    PYMTP_IMAGE_PIXELS_MAX = 1 << 26,
};

struct pymtp_projector_params {
    int32_t use_gpu;
    int32_t n_threads;
    int32_t flash_attn; // a llama_flash_attn_type
    int32_t n_rows_min; // rows of an image, where the projector takes images of any size; 0: as the file says
    int32_t n_rows_max;
};

// Loads a projector for a model, which must outlive it. PYMTP_INVALID if it does not fit the model, or needs what is not
// supported: attention in both directions, sound alone.
int32_t pymtp_projector_load(const struct llama_model * model, const char * path,
                             const struct pymtp_projector_params * params, struct pymtp_projector ** projector);
void    pymtp_projector_free(struct pymtp_projector * projector);

// Reads an image file (JPEG, PNG, BMP, GIF). PYMTP_INVALID if it is not one, is damaged, or has too many pixels.
int32_t pymtp_image_load(const uint8_t * data, size_t size, struct pymtp_image ** image);
void    pymtp_image_free(struct pymtp_image * image);

int32_t pymtp_image_size(const struct pymtp_image * image, int32_t * width, int32_t * height);

// Takes a prompt apart: text[i] with length[i] bytes, or image[i] where text[i] is NULL. [n_parts]. Special tokens in text
// are recognised; those that the model wants around an image are added, with is_start a BOS too.
int32_t pymtp_media_init(struct pymtp_projector * projector, int32_t n_parts, const char * const * text,
                         const int32_t * length, struct pymtp_image * const * image, int32_t is_start,
                         struct pymtp_media ** media);
void    pymtp_media_free(struct pymtp_media * media);

// One of the pieces that the prompt has become: tokens, or rows of an image.
struct pymtp_media_chunk {
    int32_t n_rows; // tokens, or rows of embeddings
    int32_t n_pos;  // positions that it takes: as many as rows, or fewer with M-RoPE
    int32_t part;   // the image's; -1: tokens
};

// The i-th of them. PYMTP_INVALID after the last.
int32_t pymtp_media_chunk(const struct pymtp_media * media, int32_t i, struct pymtp_media_chunk * chunk);

// The tokens of a chunk of text. token: [n_rows]
int32_t pymtp_media_tokens(const struct pymtp_media * media, int32_t i, int32_t n_rows, int32_t * token);

// The rows of a chunk of an image, as the projector computes them. embd: [n_rows, n_embd] float32, n_embd as the model takes
// them
int32_t pymtp_media_encode(const struct pymtp_media * media, int32_t i, int32_t n_rows, int32_t n_embd, float * embd);

// Decodes a chunk of an image as the next positions of a sequence, from pos on. n_heads: as many of the heads see it,
// its rows' embeddings in the place of tokens. A sequence cannot go back into it, only to its begin or its end. Errors as
// of pymtp_session_decode.
int32_t pymtp_session_decode_image(struct pymtp_session * session, const struct pymtp_media * media, int32_t i,
                                   int32_t seq, int32_t pos, int32_t n_heads);

// [cffi end]

#ifdef __cplusplus
}
#endif

#endif
