// The gradient of a convolution's weights on dense channels-last float32 images. Plain C interface, no torch headers.
// No sum is shared between threads, so results do not depend on the number of threads.
#include "fp32_gemm.h"

extern "C" {

// Writes dw (out, k, k, c), the gradient of the weights of a convolution with zero padding. x (n, h, w, c) is its
// image, g (n, rows, columns, out) the gradient of its result. c is a multiple of 32, out of 4.
void weight_gradient32(const float *x, const float *g, float *dw, int64_t n, int64_t h, int64_t w, int64_t c,
                       int64_t rows, int64_t columns, int64_t out, int64_t k, int64_t stride, int64_t pad,
                       int threads) {
    constexpr int64_t SUMMED = 128; // pixels, about, that one product sums over
    const int64_t group = std::max<int64_t>(1, SUMMED / columns), taps = k * k, panels = c / PANEL;
    std::fill_n(dw, out * taps * c, 0.f);
    // The results, from `first` on, whose tap i or j reads a pixel of the image, which has `size` rows or columns.
    const auto begin = [&](int64_t i, int64_t first) {
        return std::max(first, over(std::max<int64_t>(pad - i, 0), stride));
    };
    const auto end = [&](int64_t i, int64_t last, int64_t size) {
        return std::min(last, over(size + pad - i, stride));
    };
#pragma omp parallel num_threads(threads)
    for (int64_t number = 0; number < n; number++)
        for (int64_t first = 0; first < rows; first += group)
#pragma omp for schedule(static) nowait // a task's sums are always the same thread's
            for (int64_t task = 0; task < taps * panels; task++) {
                const int64_t tap = task / panels, channel = task % panels * PANEL, i = tap / k, j = tap % k;
                const int64_t top = begin(i, first), left = begin(j, 0);
                const int64_t lines = end(i, std::min(first + group, rows), h) - top, count = end(j, columns, w) - left;
                if (lines <= 0 || count <= 0) continue;
                const int64_t line = number * h + top * stride + i - pad;
                const float *b = x + (line * w + left * stride + j - pad) * c + channel;
                const float *a = g + ((number * rows + top) * columns + left) * out;
                const Walk of_a{out, columns * out}, of_b{stride * c, stride * w * c};
                for (int64_t o = 0, high; o < out; o += high) {
                    high = (out - o) % HIGH ? 4 : HIGH;
                    const auto add = (out - o) % HIGH ? product<4, true> : product<HIGH, true>;
                    add(a + o, 1, of_a, b, of_b, count, lines, dw + (o * taps + tap) * c + channel, taps * c);
                }
            }
}
}
