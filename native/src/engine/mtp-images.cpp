// Passes over the rows of an image: see mtp-image-rows.h.

#include "llama-model.h"
#include "mtp-engine.h"

#include <algorithm>

int32_t mtp_engine::decode_image(const mtp_image_rows & rows, const float * embd, const std::vector<llama_pos> & pos) {
    mtp_image_rows image = rows;
    image.n_heads        = heads.own_memory() ? 0 : std::min(rows.n_heads, heads.n_storing);

    const mtp_restored decoded(cur_image, &image);
    const size_t       n_embd   = ctx.model.hparams.n_embd_inp();
    const int32_t      n_ubatch = ctx.cparams.n_ubatch;
    const int32_t      n_pos    = pos.size() / image.n_rows;

    for (int32_t begin = 0; begin < image.n_rows; begin += n_ubatch) {
        const int32_t n = std::min(n_ubatch, image.n_rows - begin);

        std::vector<llama_pos> part;
        for (int32_t section = 0; section < n_pos; ++section) {
            const auto first = pos.begin() + section * image.n_rows + begin;
            part.insert(part.end(), first, first + n);
        }
        std::vector<int32_t>        n_seq_id(n, 1);
        llama_seq_id                seq = image.seq;
        std::vector<llama_seq_id *> seq_id(n, &seq);
        std::vector<int8_t>         logits(n, 0);

        n_fed.assign(n, 0);
        const int32_t res = llama_decode(&ctx, { n, nullptr, const_cast<float *>(embd) + begin * n_embd, part.data(),
                                                 n_seq_id.data(), seq_id.data(), logits.data() });
        if (res != 0) {
            return res;
        }
    }
    heads.truncate(image.seq, image.begin + image.n_pos);
    images[image.seq].spans.push_back({ image.begin, image.n_pos });
    return 0;
}
