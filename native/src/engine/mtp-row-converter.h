#pragma once

// Rows of weights in another type. Knows no model.

#include "ggml.h"

#include <cstdint>

// Whether numbers can be read from rows of a type.
bool mtp_can_convert_from(ggml_type type);

// Whether numbers can be written as rows of a type without calibration data, and a matrix of it can be multiplied.
bool mtp_can_convert_to(ggml_type type);

// Converts rows between types that can be converted, whose blocks fit a row. Returns the first row with a number that is
// not finite, where it stops; n_rows if there is none.
int64_t mtp_convert_rows(ggml_type from, ggml_type to, int64_t n_rows, int64_t n_per_row, const void * rows,
                         void * converted);
