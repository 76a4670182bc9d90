// The transforms of Winograd's convolution F(2x2, 3x3) (Lavin & Gray 2016, arXiv:1509.09308, section 4.1) on
// channels-last bfloat16 images. The products between them are the caller's: sixteen matrices, one for each place of
// a 4x4 tile. Plain C interface, no torch headers.
#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

using bf16 = uint16_t;

inline float load(bf16 v) {
    uint32_t wide = uint32_t(v) << 16;
    float out;
    std::memcpy(&out, &wide, 4);
    return out;
}
inline bf16 store(float v) {
    uint32_t wide;
    std::memcpy(&wide, &v, 4);
    uint32_t rounded = (wide + 0x7fff + ((wide >> 16) & 1)) >> 16; // to nearest, ties to even
    return bf16(v != v ? 0x7fc0 : rounded);
}

constexpr int64_t BLOCK = 32; // channels at a time

// v = Bt d B of one tile; d points at its 16 pixels.
void transform_input(const bf16 *const *d, bf16 *v, int64_t step, int64_t channels) {
    for (int64_t first = 0; first < channels; first += BLOCK) {
        const int64_t count = std::min(BLOCK, channels - first);
        float t[16][BLOCK];
        for (int j = 0; j < 4; j++) {
            const bf16 *d0 = d[j] + first, *d1 = d[4 + j] + first, *d2 = d[8 + j] + first, *d3 = d[12 + j] + first;
            for (int64_t c = 0; c < count; c++) {
                const float a = load(d0[c]), b = load(d1[c]), e = load(d2[c]), f = load(d3[c]);
                t[j][c] = a - e, t[4 + j][c] = b + e, t[8 + j][c] = e - b, t[12 + j][c] = b - f;
            }
        }
        for (int i = 0; i < 4; i++) {
            bf16 *__restrict v0 = v + (4 * i) * step + first, *__restrict v1 = v0 + step;
            bf16 *__restrict v2 = v1 + step, *__restrict v3 = v2 + step;
            const float *a = t[4 * i], *b = t[4 * i + 1], *e = t[4 * i + 2], *f = t[4 * i + 3];
            for (int64_t c = 0; c < count; c++) {
                v0[c] = store(a[c] - e[c]), v1[c] = store(b[c] + e[c]);
                v2[c] = store(e[c] - b[c]), v3[c] = store(b[c] - f[c]);
            }
        }
    }
}

// y = At m A of one tile, plus the bias; y points at its four pixels.
void transform_output(const bf16 *m, int64_t step, const float *bias, bf16 *const *y, int64_t channels) {
    for (int64_t first = 0; first < channels; first += BLOCK) {
        const int64_t count = std::min(BLOCK, channels - first);
        float t[8][BLOCK];
        for (int j = 0; j < 4; j++) {
            const bf16 *m0 = m + j * step + first, *m1 = m0 + 4 * step, *m2 = m1 + 4 * step, *m3 = m2 + 4 * step;
            for (int64_t c = 0; c < count; c++) {
                const float a = load(m0[c]), b = load(m1[c]), e = load(m2[c]), f = load(m3[c]);
                t[j][c] = a + b + e, t[4 + j][c] = b - e - f;
            }
        }
        for (int i = 0; i < 2; i++) {
            bf16 *__restrict y0 = y[2 * i] + first, *__restrict y1 = y[2 * i + 1] + first;
            const float *a = t[4 * i], *b = t[4 * i + 1], *e = t[4 * i + 2], *f = t[4 * i + 3], *k = bias + first;
            for (int64_t c = 0; c < count; c++)
                y0[c] = store(a[c] + b[c] + e[c] + k[c]), y1[c] = store(b[c] - e[c] - f[c] + k[c]);
        }
    }
}

} // namespace

extern "C" {

// x: (h, w, c) with row and column steps; v: (16, rows * across, c), for tile rows first to first + rows.
void winograd_input(const bf16 *x, bf16 *v, const bf16 *zeros, int64_t h, int64_t w, int64_t c, int64_t first,
                    int64_t rows, int64_t across, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t tile = 0; tile < rows * across; tile++) {
        const int64_t top = 2 * (first + tile / across), left = 2 * (tile % across);
        const bf16 *d[16];
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++)
                d[4 * i + j] = top + i < h && left + j < w ? x + ((top + i) * w + left + j) * c : zeros;
        transform_input(d, v + tile * c, rows * across * c, c);
    }
}

// m: (16, rows * across, c); y: (h, w, c), the same tile rows of it; spare: c values that nobody reads, per thread.
void winograd_output(const bf16 *m, const float *bias, bf16 *y, bf16 *spare, int64_t h, int64_t w, int64_t c,
                     int64_t first, int64_t rows, int64_t across, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t column = 0; column < across; column++) {
            const int64_t top = 2 * (first + row), left = 2 * column;
            bf16 *to[4];
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 2; j++)
                    to[2 * i + j] =
                        top + i < h && left + j < w ? y + ((top + i) * w + left + j) * c : spare + (row * 4 + 2 * i + j) * c;
            transform_output(m + (row * across + column) * c, rows * across * c, bias, to, c);
        }
}
}
