// Instance norm, activation, residual add and reflection padding as one operation on channels-last tensors:
// one pass for the statistics and one for the result, forward and backward. Plain C interface, no torch headers.
// Sums run over fixed chunks of rows and are combined in a fixed order, so results do not depend on threads.
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

struct Shape {
    int64_t n, h, w, c, pad;
    int64_t padded_w() const { return w + 2 * pad; }
    int64_t padded_h() const { return h + 2 * pad; }
};

constexpr int64_t ROWS = 8; // rows a chunk of the sums

inline int64_t reflect(int64_t i, int64_t size) {
    if (i < 0) i = -i;
    return i >= size ? 2 * (size - 1) - i : i;
}

// Mean and reciprocal deviation per image and channel, from sums of differences to each chunk's first pixel.
template <typename T> void statistics(const T *x, float *mean, float *rstd, const Shape &s, float eps, int threads) {
    const int64_t chunks = (s.h + ROWS - 1) / ROWS;
    std::vector<float> shift(s.n * chunks * s.c), sum(shift.size(), 0.f), square(shift.size(), 0.f);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t k = 0; k < s.n * chunks; k++) {
        const int64_t n = k / chunks, first = (k % chunks) * ROWS, last = std::min(first + ROWS, s.h);
        const T *px = x + (n * s.h + first) * s.w * s.c;
        float *__restrict at = &shift[k * s.c], *__restrict one = &sum[k * s.c], *__restrict two = &square[k * s.c];
        for (int64_t c = 0; c < s.c; c++) at[c] = load(px[c]);
        for (int64_t i = 0; i < (last - first) * s.w; i++, px += s.c)
            for (int64_t c = 0; c < s.c; c++) {
                const float d = load(px[c]) - at[c];
                one[c] += d;
                two[c] += d * d;
            }
    }
    for (int64_t n = 0; n < s.n; n++)
        for (int64_t c = 0; c < s.c; c++) {
            double count = 0, average = 0, spread = 0; // combined as in Chan et al. 1979
            for (int64_t k = 0; k < chunks; k++) {
                const int64_t j = (n * chunks + k) * s.c + c;
                const double m = double(std::min(ROWS, s.h - k * ROWS) * s.w), local = sum[j] / m;
                const double delta = shift[j] + local - average;
                spread += std::max(0.0, square[j] - m * local * local) + delta * delta * count * m / (count + m);
                average += delta * m / (count + m);
                count += m;
            }
            mean[n * s.c + c] = float(average);
            rstd[n * s.c + c] = float(1.0 / std::sqrt(spread / count + eps));
        }
}

template <typename T>
void forward(const T *x, const T *residual, int64_t residual_image, int64_t residual_row, T *out, float *mean,
             float *rstd, const Shape &s, float slope, float eps, int threads) {
    statistics(x, mean, rstd, s, eps, threads);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t k = 0; k < s.n * s.padded_h(); k++) {
        const int64_t n = k / s.padded_h(), h = reflect(k % s.padded_h() - s.pad, s.h);
        const float *m = mean + n * s.c, *r = rstd + n * s.c;
        const T *px = x + (n * s.h + h) * s.w * s.c;
        const T *pr = residual ? residual + n * residual_image + h * residual_row : nullptr;
        T *row = out + k * s.padded_w() * s.c, *__restrict po = row + s.pad * s.c;
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
}

// Adds up the padded gradient's rows and columns that show pixel row h of image n, and the gradient of the unpadded
// result where that was used too.
template <typename T>
void fold(const T *g, const T *inner, float *__restrict row, const Shape &s, int64_t n, int64_t h) {
    int64_t from[3], rows = 0;
    from[rows++] = h + s.pad;
    if (h >= 1 && h <= s.pad) from[rows++] = s.pad - h;
    if (h >= s.h - 1 - s.pad && h <= s.h - 2) from[rows++] = s.pad + 2 * (s.h - 1) - h;
    for (int64_t i = 0; i < rows; i++) {
        const T *source = g + (n * s.padded_h() + from[i]) * s.padded_w() * s.c;
        const T *middle = source + s.pad * s.c;
        if (i == 0)
            for (int64_t j = 0; j < s.w * s.c; j++) row[j] = load(middle[j]);
        else
            for (int64_t j = 0; j < s.w * s.c; j++) row[j] += load(middle[j]);
        for (int64_t p = 0; p < s.pad; p++) {
            float *left = row + (s.pad - p) * s.c, *right = row + (s.w - 2 - p) * s.c;
            const T *l = source + p * s.c, *r = source + (s.pad + s.w + p) * s.c;
            for (int64_t c = 0; c < s.c; c++) left[c] += load(l[c]);
            for (int64_t c = 0; c < s.c; c++) right[c] += load(r[c]);
        }
    }
    if (inner) {
        const T *source = inner + (n * s.h + h) * s.w * s.c;
        for (int64_t j = 0; j < s.w * s.c; j++) row[j] += load(source[j]);
    }
}

// dx = r (g - mean(g) - xhat mean(g xhat)), with g the folded gradient behind the activation.
template <typename T>
void backward(const T *g, const T *inner, const T *x, const float *mean, const float *rstd, T *dx, T *dresidual,
              const Shape &s, float slope, int threads) {
    const int64_t chunks = (s.h + ROWS - 1) / ROWS;
    std::vector<float> sum(s.n * chunks * s.c, 0.f), dot(sum.size(), 0.f);
    std::vector<float> sums(s.n * s.c), dots(s.n * s.c);
#pragma omp parallel num_threads(threads)
    {
        std::vector<float> row(s.w * s.c);
#pragma omp for schedule(static)
        for (int64_t k = 0; k < s.n * chunks; k++) {
            const int64_t n = k / chunks, first = (k % chunks) * ROWS, last = std::min(first + ROWS, s.h);
            const float *m = mean + n * s.c, *r = rstd + n * s.c;
            float *__restrict one = &sum[k * s.c], *__restrict two = &dot[k * s.c];
            for (int64_t h = first; h < last; h++) {
                fold(g, inner, row.data(), s, n, h);
                const int64_t at = (n * s.h + h) * s.w * s.c;
                const T *px = x + at;
                const float *pg = row.data();
                if (dresidual)
                    for (int64_t j = 0; j < s.w * s.c; j++) store(dresidual + at + j, row[j]);
                for (int64_t w = 0; w < s.w; w++, px += s.c, pg += s.c)
                    for (int64_t c = 0; c < s.c; c++) {
                        const float hat = (load(px[c]) - m[c]) * r[c];
                        const float v = hat > 0 ? pg[c] : pg[c] * slope;
                        one[c] += v;
                        two[c] += v * hat;
                    }
            }
        }
#pragma omp for schedule(static)
        for (int64_t j = 0; j < s.n * s.c; j++) {
            double a = 0, b = 0;
            for (int64_t k = 0; k < chunks; k++) {
                a += sum[((j / s.c) * chunks + k) * s.c + j % s.c];
                b += dot[((j / s.c) * chunks + k) * s.c + j % s.c];
            }
            sums[j] = float(a / double(s.h * s.w));
            dots[j] = float(b / double(s.h * s.w));
        }
#pragma omp for schedule(static)
        for (int64_t k = 0; k < s.n * s.h; k++) {
            const int64_t n = k / s.h;
            const float *m = mean + n * s.c, *r = rstd + n * s.c, *a = &sums[n * s.c], *b = &dots[n * s.c];
            fold(g, inner, row.data(), s, n, k % s.h);
            const T *px = x + k * s.w * s.c;
            T *__restrict po = dx + k * s.w * s.c;
            const float *pg = row.data();
            for (int64_t w = 0; w < s.w; w++, px += s.c, po += s.c, pg += s.c)
                for (int64_t c = 0; c < s.c; c++) {
                    const float hat = (load(px[c]) - m[c]) * r[c];
                    const float v = hat > 0 ? pg[c] : pg[c] * slope;
                    store(po + c, r[c] * (v - a[c] - hat * b[c]));
                }
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
}
