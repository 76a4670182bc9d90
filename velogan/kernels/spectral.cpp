// Weights over their largest singular value (Miyato et al. 2018), and the gradient, for CPUs with AVX-512 bfloat16. The
// weights are float32 rows (outputs, taps, channels). One thread computes, so results do not depend on their number.
#include <algorithm>
#include <cmath>

#ifdef __AVX512BF16__
#include "bf16_gemm.h"

namespace {

constexpr int64_t LANES = 16;

float dot(const float *a, const float *b, int64_t count) {
    __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int64_t i = 0, s = 0; i < count; i += LANES, s = (s + 1) % 4) {
        const __mmask16 lanes = within(count, i);
        sums[s] = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(lanes, a + i), _mm512_maskz_loadu_ps(lanes, b + i), sums[s]);
    }
    return _mm512_reduce_add_ps((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

float length(const float *a, int64_t count) { return std::sqrt(dot(a, a, count)); }

void over(float *a, float by, int64_t count) {
    for (int64_t i = 0; i < count; i++) a[i] /= by;
}

} // namespace

extern "C" {

// Writes weights over sigma, bfloat16, and sigma; u (outputs) and v, in the order of the rows, for the gradient. The
// estimate of both singular vectors lies in `left` (outputs) and `right` (channels, taps); with `improve` one power
// iteration makes it better first.
void spectral_weights(const float *weights, float *left, float *right, float *u, float *v, bf16 *made, float *sigma,
                      int64_t outputs, int64_t taps, int64_t channels, int64_t improve, float eps) {
    const int64_t count = taps * channels;
    for (int64_t t = 0; t < taps; t++)
        for (int64_t c = 0; c < channels; c++) v[t * channels + c] = right[c * taps + t];
    for (int64_t o = 0; o < outputs; o++) u[o] = dot(weights + o * count, v, count);
    if (improve) {
        over(u, std::max(eps, length(u, outputs)), outputs);
        std::fill_n(v, count, 0.f);
        for (int64_t o = 0; o < outputs; o++)
            for (int64_t i = 0; i < count; i++) v[i] += u[o] * weights[o * count + i];
        *sigma = length(v, count); // u W v, as v is u W over its length
        over(v, std::max(eps, *sigma), count);
        std::copy_n(u, outputs, left);
        for (int64_t t = 0; t < taps; t++)
            for (int64_t c = 0; c < channels; c++) right[c * taps + t] = v[t * channels + c];
    } else {
        *sigma = dot(left, u, outputs);
        std::copy_n(left, outputs, u);
    }
    const __m512 by = _mm512_set1_ps(1 / *sigma);
    for (int64_t i = 0; i < outputs * count; i += LANES) {
        const __mmask16 lanes = within(outputs * count, i);
        _mm256_mask_storeu_epi16(made + i, lanes, rounded(_mm512_maskz_loadu_ps(lanes, weights + i) * by));
    }
}

// The gradient of the weights from g, that of the weights over sigma: (g - <g, W / sigma> u v) / sigma.
void spectral_gradient(const float *g, const float *weights, const float *u, const float *v, const float *sigma,
                       float *made, int64_t outputs, int64_t count) {
    double along = 0;
    for (int64_t o = 0; o < outputs; o++) along += dot(g + o * count, weights + o * count, count);
    for (int64_t o = 0; o < outputs; o++) {
        const float share = float(along / *sigma) * u[o], by = 1 / *sigma;
        for (int64_t i = 0; i < count; i++) made[o * count + i] = (g[o * count + i] - share * v[i]) * by;
    }
}
}

#endif
