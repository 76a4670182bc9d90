// Inverted residual blocks with frozen weights (Sandler et al. 2018), forward and back to their input, on dense
// channels-last bfloat16 with float32 sums, for CPUs with AVX-512 bfloat16 products. Numbers of channels are even,
// those of depthwise convolutions multiples of 16. Plain C interface, no torch headers. Each result is one sum in fixed
// order, so results do not depend on the number of threads.
#include <algorithm>

#ifdef __AVX512BF16__
#include "bf16_gemm.h"

namespace {

constexpr int64_t LANES = 16;  // columns of a vector
constexpr int64_t CHUNK = 96;  // rows of a product that stay in the cache while its columns pass
constexpr int64_t CEILING = 6; // of ReLU6

// Optional operations on a sum: bias, ReLU6 (`clip`), the derivative of a ReLU6 with the output `gate`, and `added`.
struct After {
    const float *bias;
    const bf16 *gate, *added;
    bool clip;

    __m512 operator()(__m512 v, int64_t at, int64_t column, __mmask16 lanes) const {
        const __m512 zero = _mm512_setzero_ps(), six = _mm512_set1_ps(CEILING);
        if (bias) v += _mm512_maskz_loadu_ps(lanes, bias + column);
        if (clip) v = _mm512_min_ps(six, _mm512_max_ps(zero, v)); // in this order NaN stays NaN
        if (gate) {
            const __m512 seen = some(gate + at, lanes);
            const __mmask16 open = _mm512_cmp_ps_mask(seen, zero, _CMP_GT_OQ) & _mm512_cmp_ps_mask(seen, six, _CMP_LT_OQ);
            v = _mm512_maskz_mov_ps(open, v);
        }
        return added ? v + some(added + at, lanes) : v;
    }

    static __m512 some(const bf16 *from, __mmask16 lanes) {
        const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from));
        return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
    }
};

// Stores sums of a product: after `after` in y, rows of `columns`; or unchanged in `sums`, rows of whole vectors.
struct Finish {
    After after;
    int64_t columns;
    bf16 *y;
    float *sums;

    void operator()(int64_t row, int64_t column, __m512 sum) const {
        if (sums) return _mm512_storeu_ps(sums + row * ((columns + LANES - 1) / LANES * LANES) + column, sum);
        const __mmask16 lanes = within(columns, column);
        const int64_t at = row * columns + column;
        _mm256_mask_storeu_epi16(y + at, lanes, rounded(after(sum, at, column, lanes)));
    }
};

// Passes ROWS x VECTORS sums to `finish`: rows of a times columns of b, of which each vector is (k / 2, LANES, 2).
template <int ROWS, int VECTORS>
inline void tile(const bf16 *a, int64_t k, const bf16 *b, int64_t row, int64_t column, const Finish &finish) {
    __m512 sum[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sum[r][v] = _mm512_setzero_ps();
    for (int64_t p = 0; p < k; p += 2) {
        __m512bh columns[VECTORS];
        for (int v = 0; v < VECTORS; v++) columns[v] = (__m512bh)_mm512_loadu_si512(b + (v * k + p) * LANES);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            const __m512bh value = (__m512bh)_mm512_set1_epi32(*(const int32_t *)(a + r * k + p));
            for (int v = 0; v < VECTORS; v++) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], value, columns[v]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) finish(row + r, column + v * LANES, sum[r][v]);
}

// Computes the rows from `row` up to, not including, `last`. With HIGH rows or more, the last block may overlap.
template <int VECTORS>
void strip(const bf16 *a, int64_t k, const bf16 *b, int64_t row, int64_t last, int64_t column, const Finish &finish) {
    constexpr int HIGH = VECTORS == 4 ? 6 : VECTORS == 3 ? 8 : 12; // as many sums as fit in registers, or are useful
    if (last - row >= HIGH) {
        for (; row < last; row += HIGH) {
            row = std::min(row, last - HIGH);
            tile<HIGH, VECTORS>(a + row * k, k, b, row, column, finish);
        }
        return;
    }
    for (; row + 4 <= last; row += 4) tile<4, VECTORS>(a + row * k, k, b, row, column, finish);
    for (; row + 2 <= last; row += 2) tile<2, VECTORS>(a + row * k, k, b, row, column, finish);
    for (; row < last; row++) tile<1, VECTORS>(a + row * k, k, b, row, column, finish);
}

// Computes all sums of a (rows, k) times b (columns / LANES rounded up, k / 2, LANES, 2).
void product(const bf16 *a, const bf16 *b, int64_t rows, int64_t k, int threads, const Finish &finish) {
    const int64_t chunks = (rows + CHUNK - 1) / CHUNK, vectors = (finish.columns + LANES - 1) / LANES;
    const int64_t blocks = (vectors + 3) / 4, wide = (vectors + blocks - 1) / blocks; // blocks of nearly equal width
#pragma omp parallel for collapse(2) num_threads(threads) schedule(static)
    for (int64_t chunk = 0; chunk < chunks; chunk++)
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t first = block * wide, row = chunk * CHUNK, last = std::min(row + CHUNK, rows);
            const bf16 *from = b + first * k * LANES;
            switch (std::min(wide, vectors - first)) {
            case 4: strip<4>(a, k, from, row, last, first * LANES, finish); break;
            case 3: strip<3>(a, k, from, row, last, first * LANES, finish); break;
            case 2: strip<2>(a, k, from, row, last, first * LANES, finish); break;
            case 1: strip<1>(a, k, from, row, last, first * LANES, finish); break;
            }
        }
}

struct Tap {
    const bf16 *from;
    const float *weight;
};

// Computes VECTORS vectors of channels of one pixel, from channel c on; its taps are `moved` values further.
template <int VECTORS>
inline void gather(const Tap *taps, int count, int64_t moved, int64_t c, int64_t pixel, bf16 *to, const After &after) {
    __m512 sum[VECTORS];
    for (int v = 0; v < VECTORS; v++) sum[v] = _mm512_setzero_ps();
    for (int t = 0; t < count; t++)
        for (int v = 0; v < VECTORS; v++)
            sum[v] = _mm512_fmadd_ps(load(taps[t].from + moved + c + v * LANES),
                                     _mm512_loadu_ps(taps[t].weight + c + v * LANES), sum[v]);
    for (int v = 0; v < VECTORS; v++) {
        const int64_t channel = c + v * LANES;
        store(to + channel, after(sum[v], pixel + channel, channel, 0xffff));
    }
}

constexpr int MOST = 8; // vectors of channels at a time

template <int VECTORS>
inline void gather_some(int64_t vectors, const Tap *taps, int count, int64_t moved, int64_t c, int64_t pixel, bf16 *to,
                        const After &after) {
    if constexpr (VECTORS > 0) {
        if (vectors == VECTORS)
            gather<VECTORS>(taps, count, moved, c, pixel, to, after);
        else
            gather_some<VECTORS - 1>(vectors, taps, count, moved, c, pixel, to, after);
    }
}

} // namespace

extern "C" {

// y (rows, outputs) is x (rows, inputs) times weight (outputs / 16 rounded up, inputs / 2, 16, 2), then `After`.
void frozen_pointwise(const bf16 *x, const bf16 *weight, const float *bias, const bf16 *gate, const bf16 *added, bf16 *y,
                      int64_t rows, int64_t inputs, int64_t outputs, int64_t clip, int threads) {
    product(x, weight, rows, inputs, threads, {{bias, gate, added, clip != 0}, outputs, y, nullptr});
}

// Convolves each channel of x (n, h, w, c) by weight (k, k, c), with `above` and `left` zeros on these sides, and those
// needed on the others. `back`: x is the gradient of the result, and y (n, rows, across, c) that of the input.
void frozen_depthwise(const bf16 *x, const float *weight, const float *bias, const bf16 *gate, bf16 *y, int64_t n,
                      int64_t h, int64_t w, int64_t c, int64_t rows, int64_t across, int64_t k, int64_t stride,
                      int64_t above, int64_t left, int64_t back, int threads) {
    const After after{bias, gate, nullptr, back == 0};
    const auto source = [&](int64_t place, int64_t i, int64_t pad) { // along one side; negative if there is none
        if (!back) return place * stride - pad + i;
        const int64_t from = place + pad - i;
        return from < 0 || from % stride ? int64_t(-1) : from / stride;
    };
    // For columns from `first` up to, not including, `last` the kernel is inside the row; with `gaps`, no column.
    const bool gaps = back && stride > 1;
    const int64_t step = back ? 1 : stride, before = back ? k - 1 - left : left;
    const int64_t first = gaps ? across : (before + step - 1) / step;
    const int64_t last = w - k + before < 0 ? 0 : std::min(across, (w - k + before) / step + 1);
    const int64_t vectors = c / LANES, parts = (vectors + MOST - 1) / MOST, wide = (vectors + parts - 1) / parts;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t line = 0; line < n * rows; line++) {
        const bf16 *image = x + line / rows * h * w * c;
        Tap taps[64];
        int count = 0;
        int64_t since = -1; // the pixel to which the taps belong
        for (int64_t px = 0; px < across; px++) {
            const bool same = since >= first && px < last; // the kernel is inside: only its position differs
            if (!same) {
                count = 0;
                since = px;
                for (int64_t i = 0; i < k; i++) {
                    const int64_t from_row = source(line % rows, i, above);
                    if (from_row < 0 || from_row >= h) continue;
                    for (int64_t j = 0; j < k; j++) {
                        const int64_t from = source(px, j, left);
                        if (from >= 0 && from < w)
                            taps[count++] = {image + (from_row * w + from) * c, weight + (i * k + j) * c};
                    }
                }
            }
            const int64_t pixel = (line * across + px) * c, moved = (px - since) * step * c;
            for (int64_t begin = 0, part; begin < vectors; begin += part) {
                part = std::min(wide, vectors - begin);
                gather_some<MOST>(part, taps, count, moved, begin * LANES, pixel, y + pixel, after);
            }
        }
    }
}

// Writes patches (n, rows, across, depth), bfloat16, of the image x (n, h, w, c), float32, times `scale` plus `shift`;
// k k c values of the depth are used. Zeros are the same as in `frozen_depthwise`.
void frozen_patches(const float *x, bf16 *patches, int64_t n, int64_t h, int64_t w, int64_t c, int64_t rows,
                    int64_t across, int64_t k, int64_t stride, int64_t above, int64_t left, int64_t depth, float scale, float shift,
                    int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t line = 0; line < n * rows; line++)
        for (int64_t px = 0; px < across; px++) {
            float values[128] = {};
            for (int64_t i = 0; i < k; i++) {
                const int64_t row = line % rows * stride - above + i;
                if (row < 0 || row >= h) continue;
                const float *from = x + (line / rows * h + row) * w * c;
                for (int64_t j = 0; j < k; j++) {
                    const int64_t column = px * stride - left + j;
                    if (column < 0 || column >= w) continue;
                    for (int64_t o = 0; o < c; o++) values[(i * k + j) * c + o] = from[column * c + o] * scale + shift;
                }
            }
            bf16 *to = patches + (line * across + px) * depth;
            for (int64_t d = 0; d < depth; d += LANES)
                _mm256_mask_storeu_epi16(to + d, within(depth, d), rounded(_mm512_loadu_ps(values + d)));
        }
}

// Writes y, the gradient of the image of `frozen_patches`, from g (n, rows, across, inputs), the gradient of the
// convolution of patches. weight: in the layout of `frozen_pointwise`, with `depth` columns.
void frozen_image_gradient(const bf16 *g, const bf16 *weight, float *y, int64_t n, int64_t h, int64_t w, int64_t c,
                           int64_t rows, int64_t across, int64_t k, int64_t stride, int64_t above, int64_t left, int64_t depth,
                           int64_t inputs, float scale, int threads) {
    const int64_t wide = (depth + LANES - 1) / LANES * LANES;
    const auto sums = buffer<float>(n * rows * across * wide);
    product(g, weight, n * rows * across, inputs, threads, {{}, depth, nullptr, sums.get()});
    const int64_t part = k * c, length = (std::max(w, across * stride) + 2 * k) * c + LANES;
#pragma omp parallel num_threads(threads)
    {
        const auto padded = buffer<float>(length); // a row of the image, with room for a kernel on both sides
#pragma omp for schedule(static)
        for (int64_t line = 0; line < n * h; line++) {
            std::fill_n(padded.get(), length, 0.f);
            for (int64_t i = 0; i < k; i++) {
                const int64_t row = line % h + above - i;
                if (row < 0 || row % stride || row / stride >= rows) continue;
                const float *from = sums.get() + (line / h * rows + row / stride) * across * wide + i * part;
                float *to = padded.get() + (k - left) * c;
                for (int64_t px = 0; px < across; px++, from += wide, to += stride * c)
                    for (int64_t d = 0; d < part; d += LANES) {
                        const __mmask16 lanes = within(part, d);
                        const __m512 more = _mm512_maskz_loadu_ps(lanes, from + d);
                        _mm512_mask_storeu_ps(to + d, lanes, _mm512_maskz_loadu_ps(lanes, to + d) + more);
                    }
            }
            for (int64_t o = 0; o < w * c; o++) y[line * w * c + o] = padded[k * c + o] * scale;
        }
    }
}
}

#endif
