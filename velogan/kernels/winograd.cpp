// Winograd's convolution F(2x2, 3x3) (Lavin & Gray 2016, arXiv:1509.09308, section 4.1) and its gradients on dense
// channels-last bfloat16 images, for CPUs with AVX-512 bfloat16 products; sums are float32. Plain C interface, no torch
// headers. No sum is shared between threads, so results do not depend on the number of threads. The 16 numbers of a
// transformed tile are called its places.
//
// Larger kernels: in each direction 5 taps are 3 and 2, and 7 are 3, 2 and 2. The small kernels lie two pixels apart, as
// the tiles do, so all read the same transformed tiles, and their results are added before the transform back. Two taps
// are three of which the first is 0; then the first place is 0 and left out: 4, 7 or 10 products in each direction, for
// two results of 3, 5 or 7 taps. A dilated convolution is the plain one on every second (third, ...) pixel: its phases.
#include <algorithm>

#ifdef __AVX512BF16__
#include "bf16_gemm.h"

namespace {

constexpr int64_t TILES = 48; // tiles at a time: their places fit into the second-level cache
constexpr int64_t PAIRS = 64; // pairs of tiles that one product of the weights' gradient sums over
constexpr int64_t STRIPS = 64; // strips at a time, at most

constexpr int64_t over(int64_t count, int64_t by) { return (count + by - 1) / by; } // rounded up
constexpr int64_t up(int64_t count, int64_t to) { return over(count, to) * to; }

struct Tile {
    int64_t image, row, column; // image: index among all phases of all images
};

// An image with `pad` zeros around it, cut into overlapping 4x4 tiles, one for each 2x2 pixels of the result. `parts` is
// the number of small kernels in each direction. Tiles are computed in strips of at most `wide`; with one small kernel
// a strip continues in the next row.
struct Plane {
    int64_t n, h, w, c, pad, parts, dilation, wide, out_h, out_w, images, down, across, blocks, strips;

    Plane(int64_t n, int64_t h, int64_t w, int64_t c, int64_t pad, int64_t kernel, int64_t dilation, int64_t most)
        : n(n), h(h), w(w), c(c), pad(pad), parts(kernel / 2), dilation(dilation), wide(most) {
        out_h = h + 2 * pad - 2 * parts * dilation, out_w = w + 2 * pad - 2 * parts * dilation;
        images = n * dilation * dilation;
        down = over(over(out_h, dilation), 2), across = over(over(out_w, dilation), 2);
        blocks = over(across, wide);
        if (parts > 1) wide = over(across, blocks);
        strips = parts > 1 ? images * blocks * down : over(images * down * across, wide);
    }
    Tile tile(int64_t strip, int64_t k) const {
        const int64_t i = strip * wide + k, row = i / across;
        if (parts == 1) return {row / down, row % down, i - row * across};
        return {strip / down / blocks, strip % down, strip / down % blocks * wide + k};
    }
    // Whether the strip's tiles are below the tiles of the strip before it, or continue them.
    bool follows(int64_t strip) const { return parts == 1 || strip % down; }
    // Products for each pair of channels, in each direction.
    int64_t products() const { return 1 + 3 * parts; }
};

// The place, in one direction, of product q, and the small kernel that it belongs to.
struct Place {
    int64_t place, part;
    Place(int64_t q, int64_t parts) : place(q ? 1 + (q - 1) / parts : 0), part(q ? (q - 1) % parts : 0) {}
};

// Writes to `at` pointers to the pixels of a square of `side` in one of the images x (h, w, c), whose tiles begin
// `before` pixels outside of it; those that are not in the image are `none`.
void pixels(const bf16 *x, const bf16 *none, const bf16 **at, int side, const Plane &s, Tile t, int64_t before,
            int64_t h, int64_t w, int64_t c) {
    const int64_t d = s.dilation, number = d > 1 ? t.image / (d * d) : t.image, phase = t.image - number * d * d;
    const int64_t row = phase / d, top = 2 * t.row * d + row - before;
    const int64_t left = 2 * t.column * d + phase - row * d - before;
    const bool there = t.image < s.images;
    x += number * h * w * c;
    for (int64_t i = top; i < top + side * d; i += d)
        for (int64_t j = left; j < left + side * d; j += d)
            *at++ = there && i >= 0 && i < h && j >= 0 && j < w ? x + (i * w + j) * c : none;
}
void image_pixels(const bf16 *x, const bf16 *none, const bf16 **at, const Plane &s, Tile tile) {
    pixels(x, none, at, 4, s, tile, s.pad, s.h, s.w, s.c);
}
void result_pixels(const bf16 *y, const bf16 *none, const bf16 **at, const Plane &s, int64_t c, Tile tile) {
    pixels(y, none, at, 2, s, tile, 0, s.out_h, s.out_w, c);
}

// v = Bt d B for sixteen channels of one tile; d points to its 16 pixels.
[[gnu::always_inline]] inline void transform_image(const bf16 *const *d, int64_t c, __mmask16 lanes, __m512 *v) {
    __m512 t[16];
    for (int j = 0; j < 4; j++) {
        const __m512 d0 = load(d[j] + c, lanes), d1 = load(d[4 + j] + c, lanes);
        const __m512 d2 = load(d[8 + j] + c, lanes), d3 = load(d[12 + j] + c, lanes);
        t[j] = d0 - d2, t[4 + j] = d1 + d2, t[8 + j] = d2 - d1, t[12 + j] = d1 - d3;
    }
    for (int i = 0; i < 16; i += 4) {
        v[i] = t[i] - t[i + 2], v[i + 1] = t[i + 1] + t[i + 2];
        v[i + 2] = t[i + 2] - t[i + 1], v[i + 3] = t[i + 1] - t[i + 3];
    }
}

// v = A g At for sixteen channels of the gradient of one tile's result; g points to its 4 pixels.
[[gnu::always_inline]] inline void transform_gradient(const bf16 *const *g, int64_t c, __mmask16 lanes, __m512 *v) {
    const __m512 zero = _mm512_setzero_ps();
    for (int j = 0; j < 2; j++) {
        const __m512 g0 = load(g[j] + c, lanes), g1 = load(g[2 + j] + c, lanes);
        v[j] = g0, v[4 + j] = g0 + g1, v[8 + j] = g0 - g1, v[12 + j] = zero - g1;
    }
    for (int i = 0; i < 16; i += 4) {
        const __m512 a = v[i], b = v[i + 1];
        v[i + 1] = a + b, v[i + 2] = a - b, v[i + 3] = zero - b;
    }
}

// Writes At m A plus the bias, for up to BLOCK channels of one tile, to those of its four pixels that are in the image.
void write_result(const float *m, int64_t place, const float *bias, int64_t channels, bf16 *const *y) {
    for (int64_t c = 0; c < channels; c += 16) {
        const __mmask16 lanes = within(channels, c);
        __m512 t[8];
        for (int j = 0; j < 4; j++) {
            const float *at = m + j * place + c;
            const __m512 m0 = _mm512_loadu_ps(at), m1 = _mm512_loadu_ps(at + 4 * place);
            const __m512 m2 = _mm512_loadu_ps(at + 8 * place), m3 = _mm512_loadu_ps(at + 12 * place);
            t[j] = m0 + m1 + m2, t[4 + j] = m1 - m2 - m3;
        }
        const __m512 k = bias ? _mm512_maskz_loadu_ps(lanes, bias + c) : _mm512_setzero_ps();
        for (int i = 0; i < 2; i++) {
            const __m512 *a = t + 4 * i;
            if (y[2 * i]) store(y[2 * i] + c, a[0] + a[1] + a[2] + k, lanes);
            if (y[2 * i + 1]) store(y[2 * i + 1] + c, a[1] - a[2] - a[3] + k, lanes);
        }
    }
}

// Which rows of transformed tiles belong to the strips from `first` on: strip i reads `parts` rows from at[i] on.
struct Rows {
    int64_t at[STRIPS], count = 0;

    // Calls transform(row, strip, below) for each row; `below` counts the rows from the strip's first.
    template <typename F> Rows(const Plane &s, int64_t first, int64_t strips, F transform) {
        for (int64_t i = 0; i < strips; i++) {
            const bool follows = i && s.follows(first + i);
            at[i] = i == 0 ? 0 : follows ? at[i - 1] + 1 : count;
            for (int64_t below = follows ? s.parts - 1 : 0; below < s.parts; below++) transform(count++, first + i, below);
        }
    }
    // The number of strips from i on, below `strips`, whose rows are next to each other.
    int64_t run(int64_t i, int64_t strips) const {
        int64_t next = i + 1;
        while (next < strips && at[next] == at[next - 1] + 1) next++;
        return next - i;
    }
};

// Computes the result's pixels of some strips from `first` on.
void convolve(const bf16 *x, const bf16 *none, const bf16 *u, const float *bias, bf16 *y, const Plane &s, int64_t out,
              int64_t first, int64_t strips, bf16 *v, int64_t v_place, float *m) {
    const int64_t c = up(s.c, 16), pairs = (s.c + 1) / 2, longer = s.wide + s.parts - 1, n = s.products();
    const int64_t m_place = TILES * BLOCK + APART, panel = pairs * BLOCK * 2, kernel = over(out, BLOCK) * panel;
    const Rows rows(s, first, strips, [&](int64_t row, int64_t strip, int64_t below) {
        for (int64_t k = 0; k < longer; k++) {
            const bf16 *d[16];
            Tile tile = s.tile(strip, k);
            tile.row += below;
            image_pixels(x, none, d, s, tile);
            for (int64_t i = 0; i < c; i += 16) {
                __m512 places[16];
                transform_image(d, i, within(s.c, i), places);
                for (int p = 0; p < 16; p++) store(v + p * v_place + (row * longer + k) * c + i, places[p]);
            }
        }
    });
    for (int64_t o = 0; o < out; o += BLOCK) {
        const int64_t channels = std::min(BLOCK, out - o);
        for (int64_t q = 0; q < n * n; q++) {
            const Place i(q / n, s.parts), j(q % n, s.parts);
            const int64_t p = 4 * i.place + j.place;
            const bf16 *b = u + q * kernel + o / BLOCK * panel;
            // With one small kernel all strips are one row.
            const int64_t calls = s.parts > 1 ? strips : 1, count = s.parts > 1 ? s.wide : strips * s.wide;
            for (int64_t strip = 0; strip < calls; strip++) {
                const bf16 *a = v + p * v_place + ((rows.at[strip] + i.part) * longer + j.part) * c;
                float *sums = m + p * m_place + strip * s.wide * BLOCK;
                if (i.part || j.part)
                    some_products<true>(channels, count, a, c, 2, b, pairs, sums, BLOCK);
                else
                    some_products<false>(channels, count, a, c, 2, b, pairs, sums, BLOCK);
            }
        }
        for (int64_t t = 0; t < strips * s.wide; t++) {
            const bf16 *to[4];
            result_pixels(y + o, nullptr, to, s, out, s.tile(first + t / s.wide, t % s.wide));
            write_result(m + t * BLOCK, m_place, bias ? bias + o : nullptr, channels, (bf16 *const *)to);
        }
    }
}

// Writes the places of two tiles next to each other, in blocks of BLOCK channels that lie `apart`.
template <typename F>
void transform_pair(int64_t channels, bf16 *to, int64_t place, int64_t apart, F transform) {
    for (int64_t c = 0; c < channels; c += 16) {
        __m512 one[16], two[16];
        transform(0, c, within(channels, c), one);
        transform(1, c, within(channels, c), two);
        bf16 *at = to + c / BLOCK * apart + c % BLOCK * 2;
        for (int p = 0; p < 16; p++) _mm512_storeu_si512(at + p * place, paired(rounded(one[p]), rounded(two[p])));
    }
}

// Writes Gt m G of the sums (products, products, out, c) to the gradient of weights (out, kernel, kernel, c).
template <int parts> void write_gradient(const float *m, int64_t place, float *dw, int64_t channels) {
    const __m512 half = _mm512_set1_ps(0.5f);
    constexpr int n = 1 + 3 * parts, kernel = 2 * parts + 1;
    // The taps of all small kernels in one direction, from values that lie `from` and to some that lie `to` apart.
    const auto gather = [&](const __m512 *m, int from, __m512 *t, int to) {
        for (int part = 0; part < parts; part++) {
            const __m512 m1 = m[(1 + part) * from], m2 = m[(1 + parts + part) * from];
            if (!part) t[0] = m[0] + half * (m1 + m2);
            t[(2 * part + 1) * to] = half * (m1 - m2);
            t[(2 * part + 2) * to] = half * (m1 + m2) + m[(1 + 2 * parts + part) * from];
        }
    };
    for (int64_t c = 0; c < channels; c += 16) {
        const __mmask16 lanes = within(channels, c);
        __m512 sums[n * n], t[kernel * n], taps[kernel];
        for (int q = 0; q < n * n; q++) sums[q] = _mm512_maskz_loadu_ps(lanes, m + q * place + c);
        for (int j = 0; j < n; j++) gather(sums + j, n, t + j, n);
        for (int i = 0; i < kernel; i++) {
            gather(t + i * n, 1, taps, 1);
            for (int j = 0; j < kernel; j++)
                _mm512_mask_storeu_ps(dw + (i * kernel + j) * channels + c, lanes, taps[j]);
        }
    }
}

// u = G g Gt for one direction: taps that lie `step` apart to products that lie `apart`.
template <bool MIRRORED, int parts>
inline void transform_taps(const __m512 *g, int step, __m512 *u, int apart) {
    const __m512 half = _mm512_set1_ps(0.5f);
    const auto tap = [&](int k) { return g[(MIRRORED ? 2 * parts - k : k) * step]; };
    for (int part = 0; part < parts; part++) {
        const __m512 g0 = part ? _mm512_setzero_ps() : tap(0), g1 = tap(2 * part + 1), g2 = tap(2 * part + 2);
        const __m512 one = MIRRORED ? g2 : g0, other = MIRRORED ? g0 : g2; // the same sums of mirrored taps
        if (!part) u[0] = g0;
        u[(1 + part) * apart] = half * (one + g1 + other);
        u[(1 + parts + part) * apart] = half * (one - g1 + other);
        u[(1 + 2 * parts + part) * apart] = g2;
    }
}

template <bool MIRRORED, int parts> inline void transform_kernel(const __m512 *g, __m512 *u) {
    constexpr int n = 1 + 3 * parts, kernel = 2 * parts + 1;
    __m512 t[n * kernel];
    for (int j = 0; j < kernel; j++) transform_taps<MIRRORED, parts>(g + j, kernel, t + j, kernel);
    for (int i = 0; i < n; i++) transform_taps<MIRRORED, parts>(t + i * kernel, 1, u + i * n, 1);
}

// Both results of winograd_weights.
template <int parts> void transform_weights(const float *w, bf16 *u, bf16 *back, int64_t out, int64_t c, int threads) {
    constexpr int n = 1 + 3 * parts, taps = (2 * parts + 1) * (2 * parts + 1);
    const int64_t u_panel = (c + 1) / 2 * BLOCK * 2, u_each = over(out, BLOCK) * u_panel;
    const int64_t back_panel = (out + 1) / 2 * BLOCK * 2, back_each = over(c, BLOCK) * back_panel;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t o = 0; o < out; o += 2)
        for (int64_t first = 0; first < c; first += 16) {
            const __mmask16 lanes = within(c, first);
            __m512 g[2][taps], places[2][n * n];
            for (int r = 0; r < 2; r++) {
                for (int k = 0; k < taps; k++)
                    g[r][k] = _mm512_maskz_loadu_ps(o + r < out ? lanes : 0, w + ((o + r) * taps + k) * c + first);
                transform_kernel<false, parts>(g[r], places[r]);
            }
            for (int q = 0; q < n * n; q++) {
                alignas(32) int32_t pairs[2][8];
                for (int r = 0; r < 2; r++) _mm256_store_si256((__m256i *)pairs[r], rounded(places[r][q]));
                bf16 *to = u + q * u_each + o / BLOCK * u_panel + (first / 2 * BLOCK + o % BLOCK) * 2;
                for (int64_t k = 0; k < std::min<int64_t>(8, (c - first + 1) / 2); k++)
                    for (int r = 0; r < 2; r++) *(int32_t *)(to + (k * BLOCK + r) * 2) = pairs[r][k];
            }
            for (int r = 0; r < 2; r++) transform_kernel<true, parts>(g[r], places[r]);
            for (int q = 0; q < n * n; q++) {
                bf16 *to = back + q * back_each + first / BLOCK * back_panel + (o / 2 * BLOCK + first % BLOCK) * 2;
                _mm512_storeu_si512(to, paired(rounded(places[0][q]), rounded(places[1][q])));
            }
        }
}

} // namespace

extern "C" {

// Transforms weights w (out, kernel, kernel, c) for the convolution to u (products, out / 64, c / 2, 64, 2), and for the
// gradient of its image to `back` (products, c / 64, out / 2, 64, 2): mirrored, with inputs and outputs exchanged. All
// quotients are rounded up. The kernel is 3, 5 or 7.
void winograd_weights(const float *w, bf16 *u, bf16 *back, int64_t out, int64_t c, int64_t kernel, int threads) {
    const auto transform = kernel == 3 ? transform_weights<1> : kernel == 5 ? transform_weights<2> : transform_weights<3>;
    transform(w, u, back, out, c, threads);
}

// Convolves x (n, h, w, c), with `pad` zeros around it, a multiple of the dilation, to y (n, h + 2 pad - reach,
// w + 2 pad - reach, out), where reach is (kernel - 1) dilation. bias may be null.
void winograd_convolve(const bf16 *x, const bf16 *u, const float *bias, bf16 *y, int64_t n, int64_t h, int64_t w,
                       int64_t c, int64_t out, int64_t kernel, int64_t dilation, int64_t pad, int threads) {
    const Plane s(n, h, w, c, pad, kernel, dilation, kernel == 3 ? 1 : TILES);
    const int64_t most = std::max<int64_t>(1, TILES / s.wide), rows = most * s.parts;
    const int64_t v_place = rows * (s.wide + s.parts - 1) * up(c, 16) + APART;
    const auto none = buffer<bf16>(c);
    std::fill_n(none.get(), c, bf16(0));
#pragma omp parallel num_threads(threads)
    {
        const auto v = buffer<bf16>(16 * v_place);
        const auto m = buffer<float>(16 * (TILES * BLOCK + APART));
#pragma omp for schedule(dynamic)
        for (int64_t first = 0; first < s.strips; first += most) {
            const int64_t strips = std::min(most, s.strips - first);
            convolve(x, none.get(), u, bias, y, s, out, first, strips, v.get(), v_place, m.get());
        }
    }
}

// Writes dw (out, kernel, kernel, c), the gradient of the weights of a convolution without padding. x (n, h, w, c) is
// its image, g (n, h - reach, w - reach, out) the gradient of its result.
void winograd_gradient(const bf16 *x, const bf16 *g, float *dw, int64_t n, int64_t h, int64_t w, int64_t c, int64_t out,
                       int64_t kernel, int64_t dilation, int threads) {
    const Plane s(n, h, w, c, 0, kernel, dilation, kernel == 3 ? 2 : PAIRS / 2);
    const int64_t pairs = (s.wide + 1) / 2, most = std::min(STRIPS, PAIRS / pairs), products = s.products();
    // The tiles of x are laid out once for each small kernel of a row: pairs of tiles from each on.
    const int64_t v_block = most * s.parts * pairs * BLOCK * 2, y_block = most * pairs * BLOCK * 2;
    const int64_t in_blocks = over(c, BLOCK), out_blocks = over(out, BLOCK);
    const int64_t v_place = s.parts * in_blocks * v_block + APART, y_place = out_blocks * y_block + APART;
    const int64_t c_row = up(c, 16), m_place = out * c_row + APART;
    const auto none = buffer<bf16>(std::max(c, out)), v = buffer<bf16>(16 * v_place), y = buffer<bf16>(16 * y_place);
    const auto m = buffer<float>(products * products * m_place);
    std::fill_n(none.get(), std::max(c, out), bf16(0));
#pragma omp parallel num_threads(threads)
    for (int64_t first = 0; first < s.strips; first += most) {
        const int64_t strips = std::min(most, s.strips - first);
        int64_t strip_of[STRIPS * 3], below_of[STRIPS * 3];
        const Rows rows(s, first, strips, [&](int64_t row, int64_t strip, int64_t below) {
            strip_of[row] = strip, below_of[row] = below;
        });
#pragma omp for schedule(static) nowait
        for (int64_t k = 0; k < strips * pairs; k++) {
            const bf16 *e[2][4];
            for (int i = 0; i < 2; i++) {
                const int64_t place = k % pairs * 2 + i;
                Tile tile = s.tile(first + k / pairs, place);
                if (place >= s.wide) tile.image = s.images; // no such tile: their number is odd
                result_pixels(g, none.get(), e[i], s, out, tile);
            }
            transform_pair(out, y.get() + k * BLOCK * 2, y_place, y_block,
                           [&](int i, int64_t at, __mmask16 lanes, __m512 *to) { transform_gradient(e[i], at, lanes, to); });
        }
#pragma omp for schedule(static)
        for (int64_t k = 0; k < rows.count * pairs; k++)
            for (int64_t part = 0; part < s.parts; part++) {
                const bf16 *d[2][16];
                for (int i = 0; i < 2; i++) {
                    Tile tile = s.tile(strip_of[k / pairs], k % pairs * 2 + i + part);
                    tile.row += below_of[k / pairs];
                    image_pixels(x, none.get(), d[i], s, tile);
                }
                bf16 *to = v.get() + part * in_blocks * v_block + k * BLOCK * 2;
                transform_pair(c, to, v_place, v_block,
                               [&](int i, int64_t at, __mmask16 lanes, __m512 *to) { transform_image(d[i], at, lanes, to); });
            }
#pragma omp for schedule(static)
        for (int64_t task = 0; task < products * products * in_blocks * out_blocks; task++) {
            const int64_t q = task / (in_blocks * out_blocks), in = task / out_blocks % in_blocks, o = task % out_blocks;
            const Place i(q / products, s.parts), j(q % products, s.parts);
            const int64_t p = 4 * i.place + j.place;
            const bf16 *a = y.get() + p * y_place + o * y_block;
            const bf16 *b = v.get() + p * v_place + (j.part * in_blocks + in) * v_block;
            float *sums = m.get() + q * m_place + o * BLOCK * c_row + in * BLOCK;
            const int64_t columns = std::min(BLOCK, c - in * BLOCK), height = std::min(BLOCK, out - o * BLOCK);
            for (int64_t strip = 0, run; strip < strips; strip += run) {
                run = rows.run(strip, strips);
                const bf16 *gradient = a + strip * pairs * BLOCK * 2;
                const bf16 *image = b + (rows.at[strip] + i.part) * pairs * BLOCK * 2;
                if (first || strip)
                    some_products<true>(columns, height, gradient, 2, BLOCK * 2, image, run * pairs, sums, c_row);
                else
                    some_products<false>(columns, height, gradient, 2, BLOCK * 2, image, run * pairs, sums, c_row);
            }
        }
    }
    const auto write = kernel == 3 ? write_gradient<1> : kernel == 5 ? write_gradient<2> : write_gradient<3>;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t o = 0; o < out; o++) write(m.get() + o * c_row, m_place, dw + o * kernel * kernel * c, c);
}
}

#endif
