// The C interface of weights that are no model's: rows in another type.

#include "guard.h"
#include "mtp-row-converter.h"

int32_t pymtp_convert_rows(int32_t from, int32_t to, int64_t n_rows, int64_t n_per_row, const void * rows,
                           void * converted) {
    return pymtp_guard([&]() -> int32_t {
        const auto type_from = (ggml_type) from;
        const auto type_to   = (ggml_type) to;
        if (!mtp_can_convert_from(type_from) || !mtp_can_convert_to(type_to)) {
            pymtp_refuse("rows of the ggml_type %d cannot be converted to %d", from, to);
        }
        pymtp_need_array(rows, n_rows, INT32_MAX, "rows");
        pymtp_need_array(converted, n_rows, INT32_MAX, "converted rows");
        if (n_per_row < 1 || n_per_row > INT32_MAX || n_per_row % ggml_blck_size(type_from) != 0 ||
            n_per_row % ggml_blck_size(type_to) != 0) {
            pymtp_refuse("rows of %lld numbers cannot be converted from %s to %s", (long long) n_per_row,
                         ggml_type_name(type_from), ggml_type_name(type_to));
        }
        const int64_t n = mtp_convert_rows(type_from, type_to, n_rows, n_per_row, rows, converted);
        if (n < n_rows) {
            pymtp_refuse("row %lld holds numbers that are not finite", (long long) n);
        }
        return PYMTP_OK;
    });
}
