// Instance norm, activation, residual add and reflection padding as one operation on channels-last tensors.
// Forward and backward each take one pass for the statistics and one for the result; without the norm, one pass.
// Plain C interface, no torch headers.
// Sums run over fixed chunks of rows in a fixed order, so results do not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

struct bf16 {
    uint16_t bits;
};

inline float load(float v) { return v; }
inline float load(bf16 v) {
    uint32_t wide = uint32_t(v.bits) << 16;
    float out;
    std::memcpy(&out, &wide, 4);
    return out;
}
inline void store(float *to, float v) { *to = v; }
inline void store(bf16 *to, float v) {
    uint32_t wide;
    std::memcpy(&wide, &v, 4);
    uint32_t rounded = (wide + 0x7fff + ((wide >> 16) & 1)) >> 16; // to nearest, ties to even
    to->bits = uint16_t(v != v ? 0x7fc0 : rounded);
}

constexpr int64_t ROWS = 8; // rows in a chunk of the sums

struct Shape {
    int64_t n, h, w, c, pad;
    int64_t padded_w() const { return w + 2 * pad; }
    int64_t padded_h() const { return h + 2 * pad; }
    int64_t chunks() const { return (h + ROWS - 1) / ROWS; }
};

inline int64_t reflect(int64_t i, int64_t size) {
    if (i < 0) i = -i;
    return i >= size ? 2 * (size - 1) - i : i;
}

// The sums, over one chunk of image n, of the differences to the chunk's first pixel, and of their squares.
template <typename T>
void sum_chunk(const T *x, float *__restrict at, float *__restrict one, float *__restrict two, const Shape &s,
               int64_t n, int64_t chunk) {
    const int64_t first = chunk * ROWS, last = std::min(first + ROWS, s.h);
    const T *px = x + (n * s.h + first) * s.w * s.c;
    for (int64_t c = 0; c < s.c; c++) at[c] = load(px[c]), one[c] = two[c] = 0;
    for (int64_t i = 0; i < (last - first) * s.w; i++, px += s.c)
        for (int64_t c = 0; c < s.c; c++) {
            const float d = load(px[c]) - at[c];
            one[c] += d;
            two[c] += d * d;
        }
}

// Mean and reciprocal deviation of a channel, from the sums of its chunks, combined as in Chan et al. 1979.
void combine(const float *at, const float *one, const float *two, float *mean, float *rstd, const Shape &s, float eps,
             int64_t c) {
    double count = 0, average = 0, spread = 0;
    for (int64_t k = 0; k < s.chunks(); k++) {
        const int64_t j = k * s.c + c;
        const double m = double(std::min(ROWS, s.h - k * ROWS) * s.w), local = one[j] / m;
        const double delta = at[j] + local - average;
        spread += std::max(0.0, two[j] - m * local * local) + delta * delta * count * m / (count + m);
        average += delta * m / (count + m);
        count += m;
    }
    *mean = float(average);
    *rstd = float(1.0 / std::sqrt(spread / count + eps));
}

// One row of the padded result: normalised, then activated or added to the residual's row, then reflected sideways.
template <typename T>
void write_row(const T *px, const T *pr, T *row, const float *m, const float *r, const Shape &s, float slope) {
    T *__restrict po = row + s.pad * s.c;
    for (int64_t w = 0; w < s.w; w++, px += s.c, po += s.c) {
        if (pr) {
            for (int64_t c = 0; c < s.c; c++) store(po + c, (load(px[c]) - m[c]) * r[c] + load(pr[c]));
            pr += s.c;
        } else {
            for (int64_t c = 0; c < s.c; c++) {
                const float v = (load(px[c]) - m[c]) * r[c];
                store(po + c, v > 0 ? v : v * slope);
            }
        }
    }
    for (int64_t p = 0; p < s.pad; p++) {
        std::memcpy(row + p * s.c, row + (2 * s.pad - p) * s.c, s.c * sizeof(T));
        std::memcpy(row + (s.pad + s.w + p) * s.c, row + (s.pad + s.w - 2 - p) * s.c, s.c * sizeof(T));
    }
}

// Image by image, so that the second pass finds in the cache what the first one read.
template <typename T>
void forward(const T *x, const T *residual, int64_t residual_image, int64_t residual_row, T *out, float *mean,
             float *rstd, const Shape &s, float slope, float eps, int threads) {
    std::vector<float> at(s.chunks() * s.c), one(at.size()), two(at.size());
#pragma omp parallel num_threads(threads)
    for (int64_t n = 0; n < s.n; n++) {
        float *m = mean + n * s.c, *r = rstd + n * s.c;
#pragma omp for schedule(static)
        for (int64_t k = 0; k < s.chunks(); k++)
            sum_chunk(x, &at[k * s.c], &one[k * s.c], &two[k * s.c], s, n, k);
#pragma omp for schedule(static)
        for (int64_t c = 0; c < s.c; c++) combine(at.data(), one.data(), two.data(), m + c, r + c, s, eps, c);
#pragma omp for schedule(static)
        for (int64_t k = 0; k < s.padded_h(); k++) {
            const int64_t h = reflect(k - s.pad, s.h);
            const T *pr = residual ? residual + n * residual_image + h * residual_row : nullptr;
            T *row = out + (n * s.padded_h() + k) * s.padded_w() * s.c;
            write_row(x + (n * s.h + h) * s.w * s.c, pr, row, m, r, s, slope);
        }
    }
}

// Writes to `at` the rows (or columns) of the padded result that are copies of row i. Returns how many there are.
inline int shown(int64_t *at, int64_t i, int64_t size, int64_t pad) {
    int count = 0;
    at[count++] = i + pad;
    if (i >= 1 && i <= pad) at[count++] = pad - i;
    if (i >= size - 1 - pad && i <= size - 2) at[count++] = pad + 2 * (size - 1) - i;
    return count;
}

// Calls use(w, p) for each pixel of row h of image n; p points to the pixel's gradient. This is the sum over all copies
// in the padded result, plus the gradient of the unpadded result if that was used; for a single copy nothing is summed.
template <typename T, typename F>
void fold(const T *g, const T *inner, float *__restrict sum, const Shape &s, int64_t n, int64_t h, F use) {
    int64_t rows[3], columns[3];
    const int row_count = shown(rows, h, s.h, s.pad);
    for (int64_t w = 0; w < s.w; w++) {
        const int column_count = shown(columns, w, s.w, s.pad);
        const T *first = g + ((n * s.padded_h() + rows[0]) * s.padded_w() + columns[0]) * s.c;
        if (row_count == 1 && column_count == 1 && !inner) {
            use(w, first);
            continue;
        }
        for (int64_t c = 0; c < s.c; c++) sum[c] = load(first[c]);
        for (int i = 0; i < row_count; i++)
            for (int j = i ? 0 : 1; j < column_count; j++) {
                const T *more = g + ((n * s.padded_h() + rows[i]) * s.padded_w() + columns[j]) * s.c;
                for (int64_t c = 0; c < s.c; c++) sum[c] += load(more[c]);
            }
        if (inner) {
            const T *more = inner + ((n * s.h + h) * s.w + w) * s.c;
            for (int64_t c = 0; c < s.c; c++) sum[c] += load(more[c]);
        }
        use(w, (const float *)sum);
    }
}

template <typename G, typename T>
inline void sum_pixel(const G *g, const T *x, const float *m, const float *r, float *__restrict one,
                      float *__restrict two, float slope, int64_t channels) {
    for (int64_t c = 0; c < channels; c++) {
        const float hat = (load(x[c]) - m[c]) * r[c], v = load(g[c]) * (hat > 0 ? 1.f : slope);
        one[c] += v;
        two[c] += v * hat;
    }
}

template <typename G, typename T> inline void copy_pixel(const G *g, T *__restrict to, int64_t channels) {
    for (int64_t c = 0; c < channels; c++) store(to + c, load(g[c]));
}

template <typename G, typename T>
inline void write_pixel(const G *g, const T *x, const float *m, const float *r, const float *a, const float *b,
                        T *__restrict dx, float slope, int64_t channels) {
    for (int64_t c = 0; c < channels; c++) {
        const float hat = (load(x[c]) - m[c]) * r[c], v = load(g[c]) * (hat > 0 ? 1.f : slope);
        store(dx + c, r[c] * (v - a[c] - hat * b[c]));
    }
}

// The sums of g and of g xhat over one chunk of image n; g is the folded gradient, taken back through the activation.
// Also writes the residual's gradient: the folded gradient itself.
template <typename T>
void sum_gradient(const T *g, const T *inner, const T *x, const float *m, const float *r, T *dresidual, float *pixel,
                  float *__restrict one, float *__restrict two, const Shape &s, float slope, int64_t n, int64_t chunk) {
    for (int64_t c = 0; c < s.c; c++) one[c] = two[c] = 0;
    for (int64_t h = chunk * ROWS; h < std::min((chunk + 1) * ROWS, s.h); h++) {
        const int64_t row = (n * s.h + h) * s.w * s.c;
        fold(g, inner, pixel, s, n, h, [&](int64_t w, auto *pg) {
            sum_pixel(pg, x + row + w * s.c, m, r, one, two, slope, s.c);
            if (dresidual) copy_pixel(pg, dresidual + row + w * s.c, s.c);
        });
    }
}

// dx = r (g - mean(g) - xhat mean(g xhat)), image by image as in the forward pass.
template <typename T>
void backward(const T *g, const T *inner, const T *x, const float *mean, const float *rstd, T *dx, T *dresidual,
              const Shape &s, float slope, int threads) {
    std::vector<float> one(s.chunks() * s.c), two(one.size()), sums(s.c), dots(s.c);
    const double count = double(s.h * s.w);
#pragma omp parallel num_threads(threads)
    {
        std::vector<float> pixel(s.c);
        for (int64_t n = 0; n < s.n; n++) {
            const float *m = mean + n * s.c, *r = rstd + n * s.c;
#pragma omp for schedule(static)
            for (int64_t k = 0; k < s.chunks(); k++)
                sum_gradient(g, inner, x, m, r, dresidual, pixel.data(), &one[k * s.c], &two[k * s.c], s, slope, n, k);
#pragma omp for schedule(static)
            for (int64_t c = 0; c < s.c; c++) {
                double a = 0, b = 0;
                for (int64_t k = 0; k < s.chunks(); k++) a += one[k * s.c + c], b += two[k * s.c + c];
                sums[c] = float(a / count), dots[c] = float(b / count);
            }
#pragma omp for schedule(static)
            for (int64_t h = 0; h < s.h; h++) {
                const float *a = sums.data(), *b = dots.data();
                const int64_t at = (n * s.h + h) * s.w * s.c;
                fold(g, inner, pixel.data(), s, n, h, [&](int64_t w, auto *pg) {
                    write_pixel(pg, x + at + w * s.c, m, r, a, b, dx + at + w * s.c, slope, s.c);
                });
            }
        }
    }
}

// Like `forward` without the norm: activation or residual add, then padding.
template <typename T>
void forward_plain(const T *x, const T *residual, int64_t residual_image, int64_t residual_row, T *out, const Shape &s,
                   float slope, int threads) {
    const std::vector<float> zero(s.c, 0.f), one(s.c, 1.f);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t k = 0; k < s.n * s.padded_h(); k++) {
        const int64_t n = k / s.padded_h(), h = reflect(k % s.padded_h() - s.pad, s.h);
        const T *pr = residual ? residual + n * residual_image + h * residual_row : nullptr;
        T *row = out + k * s.padded_w() * s.c;
        write_row(x + (n * s.h + h) * s.w * s.c, pr, row, zero.data(), one.data(), s, slope);
    }
}

template <typename G, typename T>
inline void slope_pixel(const G *g, const T *out, T *__restrict dx, float slope, int64_t channels) {
    for (int64_t c = 0; c < channels; c++) store(dx + c, load(g[c]) * (load(out[c]) > 0 ? 1.f : slope));
}

// dx = g where x > 0, else slope g; `out`, the padded result, has the sign of x. Without `out` dx = g.
template <typename T>
void backward_plain(const T *g, const T *inner, const T *out, T *dx, const Shape &s, float slope, int threads) {
#pragma omp parallel num_threads(threads)
    {
        std::vector<float> pixel(s.c);
#pragma omp for schedule(static)
        for (int64_t k = 0; k < s.n * s.h; k++) {
            const int64_t n = k / s.h, h = k % s.h;
            const T *po = out ? out + ((n * s.padded_h() + h + s.pad) * s.padded_w() + s.pad) * s.c : nullptr;
            fold(g, inner, pixel.data(), s, n, h, [&](int64_t w, auto *pg) {
                T *to = dx + (k * s.w + w) * s.c;
                if (po)
                    slope_pixel(pg, po + w * s.c, to, slope, s.c);
                else
                    copy_pixel(pg, to, s.c);
            });
        }
    }
}

} // namespace

extern "C" {

void norm_forward(const void *x, const void *residual, int64_t residual_image, int64_t residual_row, void *out,
                  float *mean, float *rstd, int64_t n, int64_t h, int64_t w, int64_t c, int64_t pad, float slope,
                  float eps, int half, int threads) {
    const Shape s{n, h, w, c, pad};
    if (half)
        forward((const bf16 *)x, (const bf16 *)residual, residual_image, residual_row, (bf16 *)out, mean, rstd, s,
                slope, eps, threads);
    else
        forward((const float *)x, (const float *)residual, residual_image, residual_row, (float *)out, mean, rstd, s,
                slope, eps, threads);
}

void norm_backward(const void *g, const void *inner, const void *x, const float *mean, const float *rstd, void *dx,
                   void *dresidual, int64_t n, int64_t h, int64_t w, int64_t c, int64_t pad, float slope, int half,
                   int threads) {
    const Shape s{n, h, w, c, pad};
    if (half)
        backward((const bf16 *)g, (const bf16 *)inner, (const bf16 *)x, mean, rstd, (bf16 *)dx, (bf16 *)dresidual, s,
                 slope, threads);
    else
        backward((const float *)g, (const float *)inner, (const float *)x, mean, rstd, (float *)dx,
                 (float *)dresidual, s, slope, threads);
}

void plain_forward(const void *x, const void *residual, int64_t residual_image, int64_t residual_row, void *out,
                   int64_t n, int64_t h, int64_t w, int64_t c, int64_t pad, float slope, int half, int threads) {
    const Shape s{n, h, w, c, pad};
    if (half)
        forward_plain((const bf16 *)x, (const bf16 *)residual, residual_image, residual_row, (bf16 *)out, s, slope,
                      threads);
    else
        forward_plain((const float *)x, (const float *)residual, residual_image, residual_row, (float *)out, s, slope,
                      threads);
}

void plain_backward(const void *g, const void *inner, const void *out, void *dx, int64_t n, int64_t h, int64_t w,
                    int64_t c, int64_t pad, float slope, int half, int threads) {
    const Shape s{n, h, w, c, pad};
    if (half)
        backward_plain((const bf16 *)g, (const bf16 *)inner, (const bf16 *)out, (bf16 *)dx, s, slope, threads);
    else
        backward_plain((const float *)g, (const float *)inner, (const float *)out, (float *)dx, s, slope, threads);
}
}
