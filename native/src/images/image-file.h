#pragma once

// Pixels of an image file, by stb_image. Knows nothing of models.

#include <cstddef>
#include <cstdint>
#include <memory>

struct image_pixels {
    int                                        width  = 0;
    int                                        height = 0;
    std::unique_ptr<uint8_t, void (*)(void *)> rgb; // [height, width, 3]
};

// Throws std::runtime_error if the bytes are no image, are damaged, or have more than n_pixels_max pixels.
image_pixels image_file_read(const uint8_t * data, size_t size, int64_t n_pixels_max);
