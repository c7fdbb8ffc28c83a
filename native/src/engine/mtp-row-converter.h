#pragma once

// Rows of weights in another type. Knows no model.

#include "ggml.h"

#include <cstdint>
#include <vector>

// Whether numbers can be read from rows of a type.
bool mtp_can_convert_from(ggml_type type);

// Whether numbers can be written as rows of a type without calibration data, and a matrix of it can be multiplied.
bool mtp_can_convert_to(ggml_type type);

// One row after another, between types that can be converted, whose blocks fit a row.
class mtp_row_converter {
  public:
    mtp_row_converter(ggml_type from, ggml_type to, int64_t n_per_row);

    // the numbers of a row that is stored as `from`
    const std::vector<float> & read(const void * row);

    // the row that was read last, as `to`
    void write(void * row) const;

  private:
    const ggml_type    from;
    const ggml_type    to;
    std::vector<float> numbers;
};
