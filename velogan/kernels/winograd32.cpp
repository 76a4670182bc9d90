// Winograd's convolution F(4x4, 3x3) (Lavin & Gray 2016, arXiv:1509.09308, section 4.3) and its gradients on dense
// channels-last float32 images: a quarter of the multiplications of the plain convolution. Plain C interface, no torch
// headers. No sum is shared between threads, so results do not depend on the number of threads. The 36 numbers of a
// transformed tile are called its places.
#include "fp32_gemm.h"

namespace {

constexpr int PLACES = 36;
constexpr int64_t BLOCK = 64;   // columns that are transformed back at a time
constexpr int64_t TILES = 48;   // tiles at a time in a convolution: their sums fit into the second-level cache
constexpr int64_t SUMMED = 128; // tiles that one product of the weights' gradient sums over

// The transforms in one direction, from numbers that are `from` apart to numbers that are `to` apart.
struct Image { // Bt d: 6 pixels to 6 places
    static constexpr int in = 6, out = 6;
    static inline void apply(const vec *d, int from, vec *v, int to) {
        const vec d1 = d[from], d2 = d[2 * from], d3 = d[3 * from], d4 = d[4 * from];
        const vec a = d4 - 4.f * d2, b = d3 - 4.f * d1, e = d4 - d2, f = 2.f * (d3 - d1);
        v[0] = 4.f * d[0] - 5.f * d2 + d4, v[to] = a + b, v[2 * to] = a - b, v[3 * to] = e + f, v[4 * to] = e - f;
        v[5 * to] = 4.f * d1 - 5.f * d3 + d[5 * from];
    }
};
struct Result { // At m: 6 places to 4 pixels
    static constexpr int in = 6, out = 4;
    static inline void apply(const vec *m, int from, vec *y, int to) {
        const vec a = m[from] + m[2 * from], b = m[from] - m[2 * from];
        const vec e = m[3 * from] + m[4 * from], f = m[3 * from] - m[4 * from];
        y[0] = m[0] + a + e, y[to] = b + 2.f * f, y[2 * to] = a + 4.f * e, y[3 * to] = b + 8.f * f + m[5 * from];
    }
};
struct Gradient { // A g: the gradient of 4 pixels to that of 6 places
    static constexpr int in = 4, out = 6;
    static inline void apply(const vec *g, int from, vec *v, int to) {
        const vec g0 = g[0], g1 = g[from], g2 = g[2 * from], g3 = g[3 * from];
        const vec a = g0 + g2, b = g1 + g3, e = g0 + 4.f * g2, f = 2.f * g1 + 8.f * g3;
        v[0] = g0, v[to] = a + b, v[2 * to] = a - b, v[3 * to] = e + f, v[4 * to] = e - f, v[5 * to] = g3;
    }
};
struct Weights { // G g: 3 taps to 6 places
    static constexpr int in = 3, out = 6;
    static inline void apply(const vec *g, int from, vec *u, int to) {
        const vec g0 = g[0], g1 = g[from], g2 = g[2 * from];
        const vec a = (g0 + g2) / -6.f, b = g1 / -6.f, e = g0 / 24.f + g2 / 6.f, f = g1 / 12.f;
        u[0] = g0 / 4.f, u[to] = a + b, u[2 * to] = a - b, u[3 * to] = e + f, u[4 * to] = e - f, u[5 * to] = g2;
    }
};
struct Taps { // Gt u: the gradient of 6 places to that of 3 taps
    static constexpr int in = 6, out = 3;
    static inline void apply(const vec *u, int from, vec *g, int to) {
        const vec a = (u[from] + u[2 * from]) / -6.f, b = (u[2 * from] - u[from]) / 6.f;
        const vec e = u[3 * from] + u[4 * from], f = u[3 * from] - u[4 * from];
        g[0] = u[0] / 4.f + a + e / 24.f, g[to] = b + f / 12.f, g[2 * to] = a + e / 6.f + u[5 * from];
    }
};
// Both directions: a square of T::in to one of T::out.
template <typename T> [[gnu::always_inline]] inline void transform(const vec *from, vec *to) {
    vec half[T::in * T::out];
    for (int j = 0; j < T::in; j++) T::apply(from + j, T::in, half + j, T::in);
    for (int i = 0; i < T::out; i++) T::apply(half + i * T::in, 1, to + i * T::out, 1);
}

// An image (n, h, w, c) with `pad` zeros around it, and how its result is cut into tiles of 4x4 pixels.
struct Plane {
    int64_t n, h, w, c, pad, out_h = h + 2 * pad - 2, out_w = w + 2 * pad - 2;
    int64_t down = over(out_h, 4), across = over(out_w, 4), tiles = n * down * across;
};

// Writes to `at` pointers to the pixels of tile t, a square of `side` in one of the images x (h, w, c), whose tiles
// begin `before` pixels outside of it; those that are not in the image are `none`.
template <typename T>
void pixels(T *x, T *none, T **at, int side, const Plane &s, int64_t t, int64_t before, int64_t h, int64_t w,
            int64_t c) {
    const int64_t row = t / s.across, number = row / s.down;
    const int64_t top = (row - number * s.down) * 4 - before, left = (t - row * s.across) * 4 - before;
    for (int64_t i = top; i < top + side; i++)
        for (int64_t j = left; j < left + side; j++)
            *at++ = i >= 0 && i < h && j >= 0 && j < w ? x + ((number * h + i) * w + j) * c : none;
}

// Writes the places of a square of pixels, `place` numbers apart, for all channels and 0 up to whole vectors.
template <typename T> void write_places(const float *const *from, int64_t channels, float *to, int64_t place) {
    for (int64_t c = 0; c < channels; c += WIDE) {
        vec d[T::in * T::in], v[PLACES];
        for (int i = 0; i < T::in * T::in; i++) d[i] = load(from[i] + c, channels - c);
        transform<T>(d, v);
        for (int p = 0; p < PLACES; p++) store(to + p * place + c, v[p]);
    }
}

// Computes the result's pixels of `count` tiles from `first` on. u is as winograd32_weights writes it.
void convolve(const float *x, const float *none, const float *u, float *y, const Plane &s, int64_t out, int64_t first,
              int64_t count, float *v, float *m) {
    const int64_t row = up(s.c, WIDE) + APART, v_place = TILES * row + APART, m_place = TILES * BLOCK + APART;
    const int64_t panel = s.c * PANEL, u_place = over(out, PANEL) * panel;
    const int64_t share = up(panel / over(count, HIGH), 16); // part of the next panel that each product prefetches
    for (int64_t t = 0; t < count; t++) {
        const float *d[36];
        pixels(x, none, d, 6, s, first + t, s.pad, s.h, s.w, s.c);
        write_places<Image>(d, s.c, v + t * row, v_place);
    }
    for (int64_t o = 0; o < out; o += BLOCK) {
        const int64_t channels = std::min(BLOCK, out - o);
        for (int p = 0; p < PLACES; p++)
            for (int64_t j = 0; j < channels; j += PANEL) {
                const float *b = u + p * u_place + (o + j) / PANEL * panel;
                const float *next = j + PANEL < channels ? b + panel : b + u_place - j / PANEL * panel;
                for (int64_t t = 0; t < count; t += HIGH, next += share) {
                    for (int64_t i = 0; i < share; i += 16) __builtin_prefetch(next + i, 0, 2); // a cache line
                    product<HIGH, false>(v + p * v_place + t * row, row, {1}, b, {PANEL}, s.c, 1,
                                         m + p * m_place + t * BLOCK + j, BLOCK);
                }
            }
        for (int64_t t = 0; t < count; t++) {
            float *to[16];
            pixels<float>(y + o, nullptr, to, 4, s, first + t, 0, s.out_h, s.out_w, out);
            for (int64_t j = 0; j < channels; j += WIDE) {
                vec sums[PLACES], d[16];
                for (int p = 0; p < PLACES; p++) sums[p] = load(m + p * m_place + t * BLOCK + j);
                transform<Result>(sums, d);
                for (int i = 0; i < 16; i++)
                    if (to[i]) store(to[i] + j, d[i], channels - j);
            }
        }
    }
}

} // namespace

extern "C" {

// Transforms 3x3 weights to u (36, columns / PANEL rounded up, rows, PANEL). The weight of input channel
// `row`, output channel `column` and tap (i, j) lies at w[row * r + column * o + i * down + j * across].
void winograd32_weights(const float *w, float *u, int64_t rows, int64_t columns, int64_t r, int64_t o, int64_t down,
                        int64_t across, int threads) {
    const int64_t panels = over(columns, PANEL), place = panels * rows * PANEL;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t panel = 0; panel < panels; panel++)
        for (int64_t row = 0; row < rows; row++)
            for (int64_t j = 0; j < PANEL; j += WIDE) {
                const float *from = w + row * r + (panel * PANEL + j) * o;
                const int64_t count = std::clamp<int64_t>(columns - panel * PANEL - j, 0, WIDE);
                vec taps[9] = {}, places[PLACES];
                for (int tap = 0; tap < 9; tap++)
                    for (int64_t i = 0; i < count; i++) taps[tap][i] = from[i * o + tap / 3 * down + tap % 3 * across];
                transform<Weights>(taps, places);
                for (int p = 0; p < PLACES; p++) store(u + p * place + (panel * rows + row) * PANEL + j, places[p]);
            }
}

// The size of u, in numbers.
int64_t winograd32_size(int64_t rows, int64_t columns) { return PLACES * over(columns, PANEL) * rows * PANEL; }

// Convolves x (n, h, w, c), with `pad` zeros around it, to y (n, h + 2 pad - 2, w + 2 pad - 2, out).
void winograd32_convolve(const float *x, const float *u, float *y, int64_t n, int64_t h, int64_t w, int64_t c,
                         int64_t out, int64_t pad, int threads) {
    const Plane s{n, h, w, c, pad};
    const int64_t most = std::min(TILES, up(over(s.tiles, over(s.tiles, TILES)), HIGH)); // blocks of nearly equal size
    const auto none = buffer(c);
    std::fill_n(none.get(), c, 0.f);
#pragma omp parallel num_threads(threads)
    {
        const auto v = buffer(PLACES * (TILES * (up(c, WIDE) + APART) + APART));
        const auto m = buffer(PLACES * (TILES * BLOCK + APART));
#pragma omp for schedule(dynamic)
        for (int64_t first = 0; first < s.tiles; first += most)
            convolve(x, none.get(), u, y, s, out, first, std::min(most, s.tiles - first), v.get(), m.get());
    }
}

// Writes dw (out, 3, 3, c), the gradient of the weights of a convolution without padding. x (n, h, w, c) is its image,
// g (n, h - 2, w - 2, out) the gradient of its result.
void winograd32_gradient(const float *x, const float *g, float *dw, int64_t n, int64_t h, int64_t w, int64_t c,
                         int64_t out, int threads) {
    const Plane s{n, h, w, c, 0};
    const int64_t most = std::min(SUMMED, over(s.tiles, over(s.tiles, SUMMED)));
    const int64_t v_row = up(c, PANEL) + APART, g_row = up(out, std::max(WIDE, HIGH)) + APART;
    const int64_t v_place = most * v_row + APART, g_place = most * g_row + APART;
    const int64_t m_row = up(c, PANEL), m_place = up(out, HIGH) * m_row + APART;
    const auto none = buffer(std::max(c, out)), v = buffer(PLACES * v_place), e = buffer(PLACES * g_place);
    const auto m = buffer(PLACES * m_place);
    std::fill_n(none.get(), std::max(c, out), 0.f);
    const int64_t slices = over(out, BLOCK);
#pragma omp parallel num_threads(threads)
    for (int64_t first = 0; first < s.tiles; first += most) {
        const int64_t count = std::min(most, s.tiles - first);
#pragma omp for schedule(static)
        for (int64_t t = 0; t < count; t++) {
            const float *d[36];
            pixels<const float>(x, none.get(), d, 6, s, first + t, 0, h, w, c);
            write_places<Image>(d, c, v.get() + t * v_row, v_place);
            pixels<const float>(g, none.get(), d, 4, s, first + t, 0, s.out_h, s.out_w, out);
            write_places<Gradient>(d, out, e.get() + t * g_row, g_place);
        }
#pragma omp for schedule(static)
        for (int64_t task = 0; task < PLACES * slices; task++) {
            const int64_t p = task / slices, begin = task % slices * BLOCK / HIGH * HIGH;
            const int64_t end = task % slices + 1 == slices ? out : (task % slices + 1) * BLOCK / HIGH * HIGH;
            for (int64_t j = 0; j < c; j += PANEL)
                for (int64_t o = begin; o < end; o += HIGH) {
                    const float *a = e.get() + p * g_place + o, *b = v.get() + p * v_place + j;
                    float *sums = m.get() + p * m_place + o * m_row + j;
                    const auto multiply = first ? product<HIGH, true> : product<HIGH, false>;
                    multiply(a, 1, {g_row}, b, {v_row}, count, 1, sums, m_row);
                }
        }
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < c; i += WIDE) {
            vec sums[PLACES], taps[9];
            for (int p = 0; p < PLACES; p++) sums[p] = load(m.get() + p * m_place + o * m_row + i);
            transform<Taps>(sums, taps);
            for (int tap = 0; tap < 9; tap++) store(dw + (o * 9 + tap) * c + i, taps[tap], c - i);
        }
}
}
