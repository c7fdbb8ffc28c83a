// The C interface: images in prompts, by llama.cpp's mtmd.

#include "llama-model.h"
#include "mtmd.h"
#include "mtp-memory.h"
#include "pymtp-session.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#define STBI_NO_STDIO
#define STBI_NO_LINEAR
#define STBI_NO_THREAD_LOCALS
#define STBI_ONLY_JPEG
#define STBI_ONLY_PNG
#define STBI_ONLY_BMP
#define STBI_ONLY_GIF
#define STBI_MAX_DIMENSIONS (1 << 16)
#if defined(__GNUC__)
#    pragma GCC diagnostic push
#    pragma GCC diagnostic ignored "-Wunused-function"
#    pragma GCC diagnostic ignored "-Wcast-qual"
#endif
#include "stb/stb_image.h"
#if defined(__GNUC__)
#    pragma GCC diagnostic pop
#endif

struct pymtp_projector {
    static constexpr const char * what = "projector";

    // prompts that it has taken apart need it to encode their images
    std::shared_ptr<mtmd_context> ctx;
    int32_t                       n_embd; // of its rows, and of the model's
};

struct pymtp_image {
    static constexpr const char * what = "image";

    mtmd::bitmap_ptr bitmap;
};

struct pymtp_media {
    static constexpr const char * what = "prompt with images";

    std::shared_ptr<mtmd_context> ctx;
    int32_t                       n_embd;
    mtmd::input_chunks_ptr        chunks;

    const mtmd_input_chunk & chunk(int32_t i) const {
        pymtp_refuse_if(i < 0 || i >= (int32_t) mtmd_input_chunks_size(chunks.get()), "chunk %d of %zu", i,
                        mtmd_input_chunks_size(chunks.get()));
        return *mtmd_input_chunks_get(chunks.get(), i);
    }

    const mtmd_input_chunk & image(int32_t i) const {
        const auto & res = chunk(i);
        pymtp_refuse_if(mtmd_input_chunk_get_type(&res) != MTMD_INPUT_CHUNK_TYPE_IMAGE, "chunk %d is no image", i);
        return res;
    }
};

static constexpr int32_t N_PARTS_MAX = 1 << 16;

static std::mutex g_encoding; // a projector has one scheduler

// why llama.cpp could not do something
static std::string reason(const pymtp_catch_asserts & asserts, const char * otherwise) {
    if (*asserts.failed()) {
        return std::string("it is damaged, llama.cpp refuses it (") + asserts.failed() + ")";
    }
    const std::string log    = pymtp_log_take();
    const std::string loaded = pymtp_log_after(log.c_str(), "failed to load model '");
    const size_t      path   = loaded.find("': ");
    if (path != std::string::npos) {
        const size_t function = loaded.find(": ", path + 3); // the one that says it
        return loaded.substr(function == std::string::npos ? path + 3 : function + 2);
    }
    const std::string error = pymtp_log_after(log.c_str(), "error: ");
    return error.empty() ? otherwise : error;
}

// what the engine can decode
static void check_projector(const llama_model & model, const mtmd_context & ctx) {
    pymtp_refuse_if(!mtmd_support_vision(&ctx), "it is for sound, not for images");
    pymtp_refuse_if(mtmd_decode_use_non_causal(&ctx, nullptr),
                    "its model attends to rows of an image in both directions, which is not supported yet");
    pymtp_refuse_if(mtmd_decode_use_mrope(&ctx) != (model.hparams.n_pos_per_embd() == 4),
                    "its model counts positions in a way that is not supported yet");
    const bool is_glm = model.arch == LLM_ARCH_GLM4 || model.arch == LLM_ARCH_GLM4_MOE;
    // llama.cpp ends the process at the first image
    pymtp_refuse_if(is_glm && !model.hparams.use_mrope(),
                    "the model's file does not say how positions of images are counted (M-RoPE): convert it again");
}

int32_t pymtp_projector_load(const llama_model * model, const char * path, const pymtp_projector_params * params,
                             pymtp_projector ** projector) {
    return pymtp_guard([&] {
        pymtp_need(projector, "the projector") = nullptr;
        pymtp_need(model, "the model");
        pymtp_need(path, "the path");
        const auto & asked = pymtp_need(params, "the parameters");

        auto native             = mtmd_context_params_default();
        native.use_gpu          = asked.use_gpu != 0;
        native.print_timings    = false;
        native.n_threads        = std::max(1, asked.n_threads);
        native.warmup           = true; // builds a graph: a file that does not fit together shows now
        native.image_min_tokens = asked.n_rows_min;
        native.image_max_tokens = asked.n_rows_max;

        const std::lock_guard<std::mutex> lock(g_encoding);
        const pymtp_catch_asserts         asserts;

        ggml_log_callback callback;
        void *            user_data;
        llama_log_get(&callback, &user_data);
        mtmd_log_set(callback, user_data);
        pymtp_log_take();
        mtmd_context * made = nullptr;
        const auto     why  = pymtp_thrown([&] { made = mtmd_init_from_file(path, model, native); });
        if (!made) {
            pymtp_refuse("%s", why.empty() ? reason(asserts, "llama.cpp cannot load it").c_str() : why.text);
        }
        auto res = std::make_unique<pymtp_projector>();
        res->ctx.reset(made, mtmd_free);
        res->n_embd = llama_model_n_embd_inp(model);
        check_projector(*model, *made);
        pymtp_give(projector, std::move(res));
    });
}

static mtmd::bitmap_ptr read_image(const uint8_t * data, size_t size) {
    int width;
    int height;
    int n_channels;
    // the header first: what it promises decides how much memory is taken
    pymtp_refuse_if(!stbi_info_from_memory(data, (int) size, &width, &height, &n_channels),
                    "it is no JPEG, PNG, BMP or GIF that can be read");
    pymtp_refuse_if(width < 1 || height < 1 || (int64_t) width * height > PYMTP_IMAGE_PIXELS_MAX,
                    "it has %d x %d pixels, at most %d are possible", width, height, +PYMTP_IMAGE_PIXELS_MAX);
    const std::unique_ptr<uint8_t, void (*)(void *)> rgb(
        stbi_load_from_memory(data, (int) size, &width, &height, &n_channels, 3), stbi_image_free);
    pymtp_refuse_if(!rgb, "it is damaged");
    return mtmd::bitmap_ptr(mtmd_bitmap_init(width, height, rgb.get()));
}

int32_t pymtp_image_load(const uint8_t * data, size_t size, pymtp_image ** image, int32_t * width, int32_t * height) {
    return pymtp_guard([&] {
        pymtp_need(image, "the image") = nullptr;
        pymtp_refuse_if(size > PYMTP_IMAGE_BYTES_MAX, "it has %zu bytes, at most %d are possible", size,
                        +PYMTP_IMAGE_BYTES_MAX);
        pymtp_need_array(data, size, PYMTP_IMAGE_BYTES_MAX, "bytes");

        auto res                         = std::make_unique<pymtp_image>();
        res->bitmap                      = read_image(data, size);
        pymtp_need(width, "the width")   = mtmd_bitmap_get_nx(res->bitmap.get());
        pymtp_need(height, "the height") = mtmd_bitmap_get_ny(res->bitmap.get());
        pymtp_give(image, std::move(res));
    });
}

int32_t pymtp_media_init(pymtp_projector * projector, int32_t n_parts, const char * const * text,
                         const int32_t * length, pymtp_image * const * image, int32_t is_start, pymtp_media ** media) {
    return pymtp_guard(projector, [&](pymtp_projector & self) {
        pymtp_need(media, "the prompt") = nullptr;
        pymtp_need_array(text, n_parts, N_PARTS_MAX, "texts");
        pymtp_need_array(length, n_parts, N_PARTS_MAX, "lengths");
        pymtp_need_array(image, n_parts, N_PARTS_MAX, "images");

        std::vector<mtmd_input_text>                          texts(n_parts);
        std::vector<std::unique_ptr<pymtp_hold<pymtp_image>>> held; // while the call lasts
        std::vector<mtmd_input_part>                          parts(n_parts);
        std::vector<const mtmd_input_part *>                  pointers;
        for (int32_t i = 0; i < n_parts; ++i) {
            if (text[i]) {
                pymtp_refuse_if(length[i] < 0, "text %d has a length of %d", i, length[i]);
                texts[i] = { text[i], (size_t) length[i], false, true };
                parts[i] = { &texts[i], nullptr };
            } else {
                held.push_back(std::make_unique<pymtp_hold<pymtp_image>>(image[i]));
                mtmd_bitmap * bitmap = (*held.back())->bitmap.get();
                mtmd_bitmap_set_id(bitmap, std::to_string(i).c_str());
                parts[i] = { nullptr, bitmap };
            }
            pointers.push_back(&parts[i]);
        }

        auto res    = std::make_unique<pymtp_media>();
        res->ctx    = self.ctx;
        res->n_embd = self.n_embd;
        res->chunks.reset(mtmd_input_chunks_init());

        const pymtp_catch_asserts asserts;
        pymtp_log_take();
        int32_t    status = 1;
        const auto why    = pymtp_thrown([&] {
            status = mtmd_tokenize_from_parts(self.ctx.get(), res->chunks.get(), pointers.data(), pointers.size(),
                                              is_start != 0);
        });
        if (status != 0) {
            pymtp_refuse("an image cannot be prepared: %s",
                         why.empty() ? reason(asserts, "llama.cpp gave no reason").c_str() : why.text);
        }
        pymtp_give(media, std::move(res));
    });
}

int32_t pymtp_media_chunk(const pymtp_media * media, int32_t i, struct pymtp_media_chunk * chunk) {
    return pymtp_guard(media, [&](pymtp_media & self) {
        auto &       res   = pymtp_need(chunk, "the chunk");
        const auto & found = self.chunk(i);
        const char * id    = mtmd_input_chunk_get_id(&found);

        res = { (int32_t) mtmd_input_chunk_get_n_tokens(&found), mtmd_input_chunk_get_n_pos(&found),
                id ? atoi(id) : -1 };
    });
}

int32_t pymtp_media_tokens(const pymtp_media * media, int32_t i, int32_t n_rows, int32_t * token) {
    return pymtp_guard(media, [&](pymtp_media & self) {
        size_t              n;
        const llama_token * tokens = mtmd_input_chunk_get_tokens_text(&self.chunk(i), &n);
        pymtp_refuse_if(!tokens || (int64_t) n != n_rows, "chunk %d is not a text of %d tokens", i, n_rows);
        std::copy_n(tokens, n, &pymtp_need(token, "the tokens"));
    });
}

// the rows of an image, until the projector encodes another one
static const float * encode(pymtp_media & media, const mtmd_input_chunk & image) {
    pymtp_log_take();
    if (mtmd_encode_chunk(media.ctx.get(), &image) != 0) {
        const pymtp_catch_asserts none;
        throw std::runtime_error("the projector failed: " + reason(none, "llama.cpp gave no reason"));
    }
    return mtmd_get_output_embd(media.ctx.get());
}

// [n_pos_per_embd, n_rows]
static std::vector<llama_pos> positions(const mtmd_input_chunk & image, llama_pos begin, uint32_t n_pos_per_embd) {
    const int32_t          n_rows = mtmd_input_chunk_get_n_tokens(&image);
    std::vector<llama_pos> res(n_pos_per_embd * n_rows);
    for (int32_t i = 0; i < n_rows; ++i) {
        const auto     pos    = mtmd_image_tokens_get_decoder_pos(mtmd_input_chunk_get_tokens_image(&image), begin, i);
        const uint32_t axes[] = { pos.t, pos.y, pos.x, pos.z };
        for (uint32_t axis = 0; axis < n_pos_per_embd; ++axis) {
            res[axis * n_rows + i] = axes[axis];
        }
    }
    return res;
}

int32_t pymtp_session_decode_image(pymtp_session * session, const pymtp_media * media, int32_t i, int32_t seq,
                                   int32_t pos, int32_t n_heads) {
    return pymtp_guard(session, [&](pymtp_session & self) {
        const pymtp_timer timer = { self.mtp->counters.t_trunk_us };

        const pymtp_hold<pymtp_media> held(media);
        self.need_seq(seq);
        const auto & model = *llama_get_model(self.ctx);
        pymtp_refuse_if(held->n_embd != llama_model_n_embd_inp(&model),
                        "an image with rows of %d numbers for a model that takes %d: its own projector makes them",
                        held->n_embd, llama_model_n_embd_inp(&model));
        const auto &  image  = held->image(i);
        const int32_t n_rows = mtmd_input_chunk_get_n_tokens(&image);
        const int32_t n_pos  = mtmd_input_chunk_get_n_pos(&image);
        pymtp_refuse_if(n_heads < 0 || n_heads > self.n_heads, "an image for %d heads of %d", n_heads, self.n_heads);
        self.padder->drop(seq);
        pymtp_refuse_if(pos != self.padder->end(seq), "an image at position %d of sequence %d, but %d is next", pos,
                        seq, self.padder->end(seq));
        const auto fail_full = [&] {
            pymtp_fail(PYMTP_FULL, "the context of %u tokens has no room for an image of %d rows",
                       llama_n_ctx(self.ctx), n_rows);
        };
        // before the first of its ubatches: recurrent states cannot go back to it
        self.mtp->heads.release_drafts();
        if (n_pos > self.n_ctx_seq - pos || mtp_memory_n_free(llama_get_memory(self.ctx), seq) < (uint32_t) n_rows) {
            fail_full();
        }
        self.padder->drop();

        const std::lock_guard<std::mutex> lock(g_encoding);

        pymtp_run_pass(self, { { 0, pos, seq, false } }, [&] {
            const float * embd = encode(*held, image);
            const int32_t res  = self.mtp->decode_image({ seq, pos, n_pos, n_rows, n_heads }, embd,
                                                        positions(image, pos, model.hparams.n_pos_per_embd()));
            if (res == 1) {
                fail_full(); // not as a pass that is left undone: earlier ubatches may have gone through
            }
            return res;
        });
    });
}
