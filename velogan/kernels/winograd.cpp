// Winograd's convolution F(2x2, 3x3) (Lavin & Gray 2016, arXiv:1509.09308, section 4.1) and its gradients on dense
// channels-last bfloat16 images, for CPUs with AVX-512 bfloat16 products; sums are float32. Numbers of channels are
// multiples of 64. Plain C interface, no torch headers. No sum is shared between threads, so results do not depend on
// the number of threads. The 16 numbers of a transformed tile are called its places.
#include <algorithm>

#ifdef __AVX512BF16__
#include "bf16_gemm.h"

namespace {

constexpr int64_t TILES = 48; // tiles at a time: their places fit into the second-level cache
constexpr int64_t PAIRS = 64; // pairs of tiles that one product of the weights' gradient sums over

// An image with `pad` zeros around it, cut into overlapping 4x4 tiles, one for each 2x2 pixels of the result.
struct Plane {
    int64_t n, h, w, c, pad;
    int64_t out_h() const { return h + 2 * pad - 2; }
    int64_t out_w() const { return w + 2 * pad - 2; }
    int64_t across() const { return (out_w() + 1) / 2; }
    int64_t each() const { return (out_h() + 1) / 2 * across(); }
    int64_t tiles() const { return n * each(); }
};

// Writes to `at` pointers to the pixels of a square of `side` at (top, left); outside the image they are `none`.
void pixels(const bf16 *x, const bf16 *none, const bf16 **at, int side, int64_t top, int64_t left, int64_t h, int64_t w,
            int64_t c) {
    for (int64_t i = top; i < top + side; i++)
        for (int64_t j = left; j < left + side; j++)
            *at++ = i >= 0 && i < h && j >= 0 && j < w ? x + (i * w + j) * c : none;
}
void image_pixels(const bf16 *x, const bf16 *none, const bf16 **at, const Plane &s, int64_t tile) {
    const int64_t image = tile / s.each(), top = tile % s.each() / s.across() * 2, left = tile % s.across() * 2;
    pixels(x + image * s.h * s.w * s.c, none, at, 4, top - s.pad, left - s.pad, s.h, s.w, s.c);
}
void result_pixels(const bf16 *y, const bf16 *none, const bf16 **at, const Plane &s, int64_t c, int64_t tile) {
    const int64_t image = tile / s.each(), top = tile % s.each() / s.across() * 2, left = tile % s.across() * 2;
    pixels(y + image * s.out_h() * s.out_w() * c, none, at, 2, top, left, s.out_h(), s.out_w(), c);
}

// v = Bt d B for sixteen channels of one tile; d points to its 16 pixels.
inline void transform_image(const bf16 *const *d, int64_t c, __m512 *v) {
    __m512 t[16];
    for (int j = 0; j < 4; j++) {
        const __m512 d0 = load(d[j] + c), d1 = load(d[4 + j] + c), d2 = load(d[8 + j] + c), d3 = load(d[12 + j] + c);
        t[j] = d0 - d2, t[4 + j] = d1 + d2, t[8 + j] = d2 - d1, t[12 + j] = d1 - d3;
    }
    for (int i = 0; i < 16; i += 4) {
        v[i] = t[i] - t[i + 2], v[i + 1] = t[i + 1] + t[i + 2];
        v[i + 2] = t[i + 2] - t[i + 1], v[i + 3] = t[i + 1] - t[i + 3];
    }
}

// v = A g At for sixteen channels of the gradient of one tile's result; g points to its 4 pixels.
inline void transform_gradient(const bf16 *const *g, int64_t c, __m512 *v) {
    const __m512 zero = _mm512_setzero_ps();
    for (int j = 0; j < 2; j++) {
        const __m512 g0 = load(g[j] + c), g1 = load(g[2 + j] + c);
        v[j] = g0, v[4 + j] = g0 + g1, v[8 + j] = g0 - g1, v[12 + j] = zero - g1;
    }
    for (int i = 0; i < 16; i += 4) {
        const __m512 a = v[i], b = v[i + 1];
        v[i + 1] = a + b, v[i + 2] = a - b, v[i + 3] = zero - b;
    }
}

// Writes At m A plus the bias, for BLOCK channels of one tile, to those of its four pixels that are in the image.
void write_result(const float *m, int64_t place, const float *bias, bf16 *const *y) {
    for (int64_t c = 0; c < BLOCK; c += 16) {
        __m512 t[8];
        for (int j = 0; j < 4; j++) {
            const float *at = m + j * place + c;
            const __m512 m0 = _mm512_loadu_ps(at), m1 = _mm512_loadu_ps(at + 4 * place);
            const __m512 m2 = _mm512_loadu_ps(at + 8 * place), m3 = _mm512_loadu_ps(at + 12 * place);
            t[j] = m0 + m1 + m2, t[4 + j] = m1 - m2 - m3;
        }
        const __m512 k = bias ? _mm512_loadu_ps(bias + c) : _mm512_setzero_ps();
        for (int i = 0; i < 2; i++) {
            const __m512 *a = t + 4 * i;
            if (y[2 * i]) store(y[2 * i] + c, a[0] + a[1] + a[2] + k);
            if (y[2 * i + 1]) store(y[2 * i + 1] + c, a[1] - a[2] - a[3] + k);
        }
    }
}

// Computes the result's pixels of TILES tiles from `first` on.
void convolve(const bf16 *x, const bf16 *none, const bf16 *u, const float *bias, bf16 *y, const Plane &s, int64_t out,
              int64_t first, bf16 *v, float *m) {
    const int64_t count = std::min(TILES, s.tiles() - first);
    const int64_t v_place = TILES * s.c + APART, m_place = TILES * BLOCK + APART;
    for (int64_t t = 0; t < count; t++) {
        const bf16 *d[16];
        image_pixels(x, none, d, s, first + t);
        for (int64_t c = 0; c < s.c; c += 16) {
            __m512 places[16];
            transform_image(d, c, places);
            for (int p = 0; p < 16; p++) store(v + p * v_place + t * s.c + c, places[p]);
        }
    }
    for (int64_t o = 0; o < out; o += BLOCK) {
        for (int64_t p = 0; p < 16; p++)
            products<false>(count, v + p * v_place, s.c, 2, u + (p * out + o) * s.c, s.c / 2, m + p * m_place, BLOCK);
        for (int64_t t = 0; t < count; t++) {
            const bf16 *to[4];
            result_pixels(y + o, nullptr, to, s, out, first + t);
            write_result(m + t * BLOCK, m_place, bias ? bias + o : nullptr, (bf16 *const *)to);
        }
    }
}

// Writes the places of two tiles next to each other, in blocks of BLOCK channels: (16, c / BLOCK, PAIRS, BLOCK, 2).
template <typename F> void transform_pair(int64_t channels, int64_t pair, bf16 *to, F transform) {
    const int64_t place = channels * PAIRS * 2 + APART;
    for (int64_t c = 0; c < channels; c += 16) {
        __m512 one[16], two[16];
        transform(0, c, one);
        transform(1, c, two);
        bf16 *at = to + (c / BLOCK * PAIRS + pair) * BLOCK * 2 + c % BLOCK * 2;
        for (int p = 0; p < 16; p++) _mm512_storeu_si512(at + p * place, paired(rounded(one[p]), rounded(two[p])));
    }
}

// Writes Gt m G of the sums (16, out, c) to the gradient of weights (out, 3, 3, c).
void write_gradient(const float *m, int64_t place, float *dw, int64_t channels) {
    const __m512 half = _mm512_set1_ps(0.5f);
    for (int64_t c = 0; c < channels; c += 16) {
        __m512 t[12];
        for (int j = 0; j < 4; j++) {
            const float *at = m + j * place + c;
            const __m512 m0 = _mm512_loadu_ps(at), m1 = _mm512_loadu_ps(at + 4 * place);
            const __m512 m2 = _mm512_loadu_ps(at + 8 * place), m3 = _mm512_loadu_ps(at + 12 * place);
            t[j] = m0 + half * (m1 + m2), t[4 + j] = half * (m1 - m2), t[8 + j] = half * (m1 + m2) + m3;
        }
        for (int i = 0; i < 3; i++) {
            const __m512 *a = t + 4 * i;
            float *to = dw + 3 * i * channels + c;
            _mm512_storeu_ps(to, a[0] + half * (a[1] + a[2]));
            _mm512_storeu_ps(to + channels, half * (a[1] - a[2]));
            _mm512_storeu_ps(to + 2 * channels, half * (a[1] + a[2]) + a[3]);
        }
    }
}

// u = G g Gt for sixteen input channels of one output channel's weights (3, 3, c).
inline void transform_weight(const float *g, int64_t channels, __m512 *u) {
    const __m512 half = _mm512_set1_ps(0.5f);
    __m512 t[12];
    for (int j = 0; j < 3; j++) {
        const __m512 g0 = _mm512_loadu_ps(g + j * channels), g1 = _mm512_loadu_ps(g + (3 + j) * channels);
        const __m512 g2 = _mm512_loadu_ps(g + (6 + j) * channels);
        t[j] = g0, t[3 + j] = half * (g0 + g1 + g2), t[6 + j] = half * (g0 - g1 + g2), t[9 + j] = g2;
    }
    for (int i = 0; i < 4; i++) {
        const __m512 a = t[3 * i], b = t[3 * i + 1], e = t[3 * i + 2];
        u[4 * i] = a, u[4 * i + 1] = half * (a + b + e), u[4 * i + 2] = half * (a - b + e), u[4 * i + 3] = e;
    }
}

} // namespace

extern "C" {

// Transforms weights w (out, 3, 3, c) to u (16, out / 64, c / 2, 64, 2), for the convolution, and to `back`
// (16, c / 64, out / 2, 64, 2), for the gradient of its image: the mirrored weights with inputs and outputs exchanged.
// Mirroring exchanges the first and last of four places in each direction; those of the points 1 and -1 stay.
void winograd_weights(const float *w, bf16 *u, bf16 *back, int64_t out, int64_t c, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t o = 0; o < out; o += 2)
        for (int64_t first = 0; first < c; first += 16) {
            __m512 places[2][16];
            for (int r = 0; r < 2; r++) transform_weight(w + (o + r) * 9 * c + first, c, places[r]);
            for (int p = 0; p < 16; p++) {
                const __m256i even = rounded(places[0][p]), odd = rounded(places[1][p]);
                alignas(32) int32_t pairs[2][8];
                _mm256_store_si256((__m256i *)pairs[0], even);
                _mm256_store_si256((__m256i *)pairs[1], odd);
                bf16 *to = u + ((p * out + o / BLOCK * BLOCK) * c) + (first / 2 * BLOCK + o % BLOCK) * 2;
                for (int k = 0; k < 8; k++)
                    for (int r = 0; r < 2; r++) *(int32_t *)(to + (k * BLOCK + r) * 2) = pairs[r][k];
                const int i = p / 4 % 3 ? p / 4 : 3 - p / 4, j = p % 4 % 3 ? p % 4 : 3 - p % 4;
                bf16 *mirrored = back + ((4 * i + j) * c + first / BLOCK * BLOCK) * out;
                _mm512_storeu_si512(mirrored + (o / 2 * BLOCK + first % BLOCK) * 2, paired(even, odd));
            }
        }
}

// Convolves x (n, h, w, c), with `pad` zeros around it, to y (n, h + 2 pad - 2, w + 2 pad - 2, out). bias may be null.
void winograd_convolve(const bf16 *x, const bf16 *u, const float *bias, bf16 *y, int64_t n, int64_t h, int64_t w,
                       int64_t c, int64_t out, int64_t pad, int threads) {
    const Plane s{n, h, w, c, pad};
    const auto none = buffer<bf16>(c);
    std::fill_n(none.get(), c, bf16(0));
#pragma omp parallel num_threads(threads)
    {
        const auto v = buffer<bf16>(16 * (TILES * c + APART));
        const auto m = buffer<float>(16 * (TILES * BLOCK + APART));
#pragma omp for schedule(dynamic)
        for (int64_t first = 0; first < s.tiles(); first += TILES)
            convolve(x, none.get(), u, bias, y, s, out, first, v.get(), m.get());
    }
}

// Writes dw (out, 3, 3, c), the gradient of the weights of a convolution without padding. x (n, h, w, c) is its image,
// g (n, h - 2, w - 2, out) the gradient of its result.
void winograd_gradient(const bf16 *x, const bf16 *g, float *dw, int64_t n, int64_t h, int64_t w, int64_t c, int64_t out,
                       int threads) {
    const Plane s{n, h, w, c, 0};
    const int64_t widest = std::max(c, out), v_place = c * PAIRS * 2 + APART, y_place = out * PAIRS * 2 + APART;
    const int64_t m_place = out * c + APART;
    const auto none = buffer<bf16>(widest), v = buffer<bf16>(16 * v_place), y = buffer<bf16>(16 * y_place);
    const auto m = buffer<float>(16 * m_place);
    std::fill_n(none.get(), widest, bf16(0));
#pragma omp parallel num_threads(threads)
    for (int64_t first = 0; first < s.tiles(); first += 2 * PAIRS) {
        const int64_t pairs = std::min(PAIRS, (s.tiles() - first + 1) / 2);
#pragma omp for schedule(static)
        for (int64_t k = 0; k < pairs; k++) {
            const bf16 *d[2][16], *e[2][4];
            for (int i = 0; i < 2; i++) {
                const int64_t tile = first + 2 * k + i;
                std::fill_n(d[i], 16, none.get());
                std::fill_n(e[i], 4, none.get());
                if (tile >= s.tiles()) continue;
                image_pixels(x, none.get(), d[i], s, tile);
                result_pixels(g, none.get(), e[i], s, out, tile);
            }
            transform_pair(c, k, v.get(), [&](int i, int64_t at, __m512 *to) { transform_image(d[i], at, to); });
            transform_pair(out, k, y.get(), [&](int i, int64_t at, __m512 *to) { transform_gradient(e[i], at, to); });
        }
        const int64_t in_blocks = c / BLOCK, out_blocks = out / BLOCK;
#pragma omp for schedule(static)
        for (int64_t task = 0; task < 16 * in_blocks * out_blocks; task++) {
            const int64_t p = task / (in_blocks * out_blocks), i = task / out_blocks % in_blocks, o = task % out_blocks;
            const bf16 *a = y.get() + p * y_place + o * PAIRS * BLOCK * 2;
            const bf16 *b = v.get() + p * v_place + i * PAIRS * BLOCK * 2;
            float *sums = m.get() + p * m_place + o * BLOCK * c + i * BLOCK;
            if (first)
                products<true>(BLOCK, a, 2, BLOCK * 2, b, pairs, sums, c);
            else
                products<false>(BLOCK, a, 2, BLOCK * 2, b, pairs, sums, c);
        }
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t o = 0; o < out; o++) write_gradient(m.get() + o * c, m_place, dw + o * 9 * c, c);
}
}

#endif
