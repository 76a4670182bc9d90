// The gradient of a convolution's weights on dense channels-last bfloat16 images, with float32 sums, for CPUs with
// AVX-512 bfloat16 products. Numbers of channels are multiples of 64. Plain C interface, no torch headers. No sum is
// shared between threads, so results do not depend on the number of threads.
#include <algorithm>

#ifdef __AVX512BF16__
#include "bf16_gemm.h"

namespace {

constexpr int64_t PAIRS = 128; // pixel pairs, about, that one product sums over

// Packs `count` pairs of a row's pixels, at left, left + step, left + 2 step, ..., for the products: two pixels next to
// each other, in blocks of BLOCK channels that lie `apart`. Pixels outside the row are 0; x is null outside the image.
void pack(const bf16 *x, const bf16 *none, int64_t w, int64_t c, int64_t left, int64_t step, int64_t count, bf16 *to,
          int64_t apart) {
    const auto pixel = [&](int64_t i) { return x && i >= 0 && i < w ? x + i * c : none; };
    for (int64_t k = 0; k < count; k++, left += 2 * step, to += 2 * BLOCK) {
        const bf16 *one = pixel(left), *two = pixel(left + step);
        for (int64_t i = 0; i < c; i += 16) {
            const __m256i a = _mm256_loadu_si256((const __m256i *)(one + i));
            const __m256i b = _mm256_loadu_si256((const __m256i *)(two + i));
            _mm512_storeu_si512(to + i / BLOCK * apart + i % BLOCK * 2, paired(a, b));
        }
    }
}

} // namespace

extern "C" {

// Writes dw (out, k, k, c), the gradient of the weights of a convolution with zero padding. x (n, h, w, c) is its
// image, g (n, rows, columns, out) the gradient of its result.
void weight_gradient(const bf16 *x, const bf16 *g, float *dw, int64_t n, int64_t h, int64_t w, int64_t c, int64_t rows,
                     int64_t columns, int64_t out, int64_t k, int64_t stride, int64_t pad, int threads) {
    const int64_t pairs = (columns + 1) / 2, group = std::max<int64_t>(1, PAIRS / pairs);
    // x is packed once for each column of the kernel and each remainder of a row's number by the stride, so that the
    // rows that one row of the kernel reads lie next to each other.
    const int64_t lines = group + (k - 1) / stride, parts = std::min(k, stride);
    const int64_t x_block = lines * pairs * BLOCK * 2 + APART, g_block = group * pairs * BLOCK * 2 + APART;
    const int64_t in_blocks = c / BLOCK, out_blocks = out / BLOCK, taps = k * k;
    const auto image = buffer<bf16>(k * parts * in_blocks * x_block), gradient = buffer<bf16>(out_blocks * g_block);
    const auto none = buffer<bf16>(std::max(c, out));
    std::fill_n(none.get(), std::max(c, out), bf16(0));
    const int64_t groups = (rows + group - 1) / group;
#pragma omp parallel num_threads(threads)
    for (int64_t step = 0; step < n * groups; step++) {
        const int64_t number = step / groups, first = step % groups * group, count = std::min(group, rows - first);
#pragma omp for schedule(static) nowait
        for (int64_t y = 0; y < count; y++) {
            const bf16 *row = g + (number * rows + first + y) * columns * out;
            pack(row, none.get(), columns, out, 0, 1, pairs, gradient.get() + y * pairs * BLOCK * 2, g_block);
        }
#pragma omp for schedule(static)
        for (int64_t line = 0; line < parts * lines; line++) {
            const int64_t part = line / lines, y = line % lines, at = stride * (first + y) + part - pad;
            const bf16 *row = at >= 0 && at < h ? x + (number * h + at) * w * c : nullptr;
            for (int64_t j = 0; j < k; j++) {
                bf16 *to = image.get() + (j * parts + part) * in_blocks * x_block + y * pairs * BLOCK * 2;
                pack(row, none.get(), w, c, j - pad, stride, pairs, to, x_block);
            }
        }
#pragma omp for schedule(static)
        for (int64_t task = 0; task < taps * in_blocks * out_blocks; task++) {
            const int64_t block = task / (taps * out_blocks), tap = task / out_blocks % taps, o = task % out_blocks;
            const int64_t i = tap / k, j = tap % k;
            const bf16 *a = gradient.get() + o * g_block;
            const bf16 *b = image.get() + ((j * parts + i % stride) * in_blocks + block) * x_block;
            b += i / stride * pairs * BLOCK * 2;
            float *sums = dw + (o * BLOCK * taps + tap) * c + block * BLOCK;
            if (step)
                products<true>(BLOCK, a, 2, BLOCK * 2, b, count * pairs, sums, taps * c);
            else
                products<false>(BLOCK, a, 2, BLOCK * 2, b, count * pairs, sums, taps * c);
        }
    }
}
}

#endif
