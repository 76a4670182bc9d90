// Convolutions between an image of a few channels and many features, on dense channels-last bfloat16 with float32 sums,
// for CPUs with AVX-512 bfloat16 products. The number of features is a multiple of 64. Plain C interface, no torch
// headers. Sums run over fixed chunks of rows in a fixed order, so results do not depend on the number of threads.
#include <algorithm>

#ifdef __AVX512BF16__
#include "bf16_gemm.h"

namespace {

constexpr int64_t HALO = 64; // rows of the result in a chunk; they need k - 1 more rows of features
constexpr int64_t ROWS = 32; // rows of features in a chunk of the sums

inline bf16 narrow(float v) { return bf16(_mm_cvtsi128_si32((__m128i)_mm_cvtneps_pbh(_mm_set_ss(v)))); }

} // namespace

extern "C" {

// Convolves features x (n, h, w, f), with `pad` zeros around them, to y (n, h + 2 pad - k + 1, w + 2 pad - k + 1, c),
// c up to 4. weight: (columns / 64, f / 2, 64, 2); column (i k + j) c + o holds the weights of output o at (i, j).
// First each pixel is multiplied by the weights of all k k positions; then the products are added to their outputs.
void thin_convolve(const bf16 *x, const bf16 *weight, const float *bias, bf16 *y, int64_t n, int64_t h, int64_t w,
                   int64_t f, int64_t c, int64_t k, int64_t pad, int64_t columns, int threads) {
    const int64_t rows = h + 2 * pad - k + 1, across = w + 2 * pad - k + 1, margin = pad * columns;
    const int64_t chunks = (rows + HALO - 1) / HALO;
#pragma omp parallel num_threads(threads)
    {
        const auto products_row = buffer<float>(2 * margin + w * columns + 4);
        const auto sums = buffer<float>(HALO * across * 4);
        std::fill_n(products_row.get(), 2 * margin + w * columns + 4, 0.f);
#pragma omp for schedule(dynamic)
        for (int64_t chunk = 0; chunk < n * chunks; chunk++) {
            const int64_t image = chunk / chunks, first = chunk % chunks * HALO, last = std::min(first + HALO, rows);
            for (int64_t r = first; r < last; r++)
                for (int64_t i = 0; i < across * 4; i++)
                    sums[(r - first) * across * 4 + i] = bias && i % 4 < c ? bias[i % 4] : 0.f;
            for (int64_t row = std::max<int64_t>(first - pad, 0); row < std::min(last - pad + k - 1, h); row++) {
                const bf16 *from = x + (image * h + row) * w * f;
                float *to = products_row.get() + margin;
                for (int64_t block = 0; block < columns; block += BLOCK)
                    products<false>(w, from, f, 2, weight + block * f, f / 2, to + block, columns);
                for (int64_t i = 0; i < k; i++) {
                    const int64_t r = row + pad - i;
                    if (r < first || r >= last) continue;
                    for (int64_t px = 0; px < across; px++) {
                        float *sum = sums.get() + ((r - first) * across + px) * 4;
                        const float *at = products_row.get() + px * columns + i * k * c;
                        __m128 v = _mm_loadu_ps(sum);
                        for (int64_t j = 0; j < k; j++) v += _mm_loadu_ps(at + j * (columns + c));
                        _mm_storeu_ps(sum, v);
                    }
                }
            }
            bf16 *to = y + (image * rows + first) * across * c;
            for (int64_t px = 0; px < (last - first) * across; px++)
                for (int64_t o = 0; o < c; o++) to[px * c + o] = narrow(sums[px * 4 + o]);
        }
    }
}

// Writes sums (k, k, c, f): at (i, j), the sum over all pixels (y, x) of the features x (n, rows, across, f) times the
// image (n, h, w, c) at (y + i - pad, x + j - pad); the image is 0 outside.
void thin_gradient(const bf16 *x, const bf16 *image, float *sums, int64_t n, int64_t rows, int64_t across, int64_t f,
                   int64_t h, int64_t w, int64_t c, int64_t k, int64_t pad, int threads) {
    const int64_t pairs = (across + 1) / 2, words = (2 * pairs + k) * c, each = k * k * c * f;
    const int64_t chunks = (rows + ROWS - 1) / ROWS;
    const auto parts = buffer<float>(n * chunks * each);
    std::fill_n(parts.get(), n * chunks * each, 0.f);
#pragma omp parallel num_threads(threads)
    {
        const auto features = buffer<bf16>(pairs * f * 2), none = buffer<bf16>(f);
        const auto padded = buffer<bf16>(words + c);
        const auto lines = buffer<uint32_t>((ROWS + k) * words);
        std::fill_n(none.get(), f, bf16(0));
#pragma omp for schedule(dynamic)
        for (int64_t chunk = 0; chunk < n * chunks; chunk++) {
            const int64_t number = chunk / chunks, first = chunk % chunks * ROWS, last = std::min(first + ROWS, rows);
            for (int64_t line = 0; line < last - first + k - 1; line++) {
                const int64_t row = first + line - pad;
                std::fill_n(padded.get(), words + c, bf16(0));
                if (row >= 0 && row < h)
                    std::copy_n(image + (number * h + row) * w * c, std::min(w * c, words + c - pad * c),
                                padded.get() + pad * c);
                for (int64_t i = 0; i < words; i++) // two neighbours in one word
                    lines[line * words + i] = uint32_t(padded[i]) | uint32_t(padded[i + c]) << 16;
            }
            for (int64_t row = first; row < last; row++) {
                const bf16 *from = x + (number * rows + row) * across * f;
                for (int64_t p = 0; p < pairs; p++)
                    for (int64_t i = 0; i < f; i += 16) {
                        const bf16 *one = from + 2 * p * f, *two = 2 * p + 1 < across ? one + f : none.get();
                        const __m256i a = _mm256_loadu_si256((const __m256i *)(one + i));
                        const __m256i b = _mm256_loadu_si256((const __m256i *)(two + i));
                        bf16 *to = features.get() + (i / BLOCK * pairs + p) * BLOCK * 2 + i % BLOCK * 2;
                        _mm512_storeu_si512(to, paired(a, b));
                    }
                for (int64_t i = 0; i < k; i++) {
                    const bf16 *a = (const bf16 *)(lines.get() + (row - first + i) * words);
                    for (int64_t block = 0; block < f; block += BLOCK)
                        products<true>(k * c, a, 2, 4 * c, features.get() + block * pairs * 2, pairs,
                                       parts.get() + chunk * each + i * k * c * f + block, f);
                }
            }
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < each; i++) {
            float sum = 0;
            for (int64_t chunk = 0; chunk < n * chunks; chunk++) sum += parts[chunk * each + i];
            sums[i] = sum;
        }
    }
}
}

#endif
