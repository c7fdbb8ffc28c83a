#include "image-file.h"

#include <stdexcept>
#include <string>

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

image_pixels image_file_read(const uint8_t * data, size_t size, int64_t n_pixels_max) {
    image_pixels res = { 0, 0, { nullptr, stbi_image_free } };
    int          n_channels;
    // the header first: what it promises decides how much memory is taken
    if (!stbi_info_from_memory(data, (int) size, &res.width, &res.height, &n_channels)) {
        throw std::runtime_error("it is no JPEG, PNG, BMP or GIF that can be read");
    }
    if (res.width < 1 || res.height < 1 || (int64_t) res.width * res.height > n_pixels_max) {
        throw std::runtime_error("it has " + std::to_string(res.width) + " x " + std::to_string(res.height) +
                                 " pixels, at most " + std::to_string(n_pixels_max) + " are possible");
    }
    res.rgb.reset(stbi_load_from_memory(data, (int) size, &res.width, &res.height, &n_channels, 3));
    if (!res.rgb) {
        throw std::runtime_error("it is damaged");
    }
    return res;
}
