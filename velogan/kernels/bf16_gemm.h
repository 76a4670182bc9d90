// Products of bfloat16 matrices with float32 sums, and their helpers, for CPUs with AVX-512 bfloat16. Images are dense
// and channels-last; the number of channels that form the columns of a product is a multiple of 64.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <immintrin.h>
#include <memory>

namespace {

using bf16 = uint16_t;

constexpr int64_t BLOCK = 64; // columns of a product: four vectors
constexpr int64_t HIGH = 6;   // rows of a product: 24 sums fit in registers
constexpr int64_t APART = 32; // gap, in values, between large parts of a buffer: they then use different cache sets

struct Free {
    void operator()(void *memory) const { std::free(memory); }
};
template <typename T> using Buffer = std::unique_ptr<T[], Free>;
template <typename T> Buffer<T> buffer(int64_t count) {
    return Buffer<T>((T *)std::aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64));
}

inline __m512 load(const bf16 *from) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline __m512 load(const bf16 *from, __mmask16 lanes) { // other lanes are 0
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline __m256i rounded(__m512 v) { return (__m256i)_mm512_cvtneps_pbh(v); }
inline void store(bf16 *to, __m512 v) { _mm256_storeu_si256((__m256i *)to, rounded(v)); }
inline void store(bf16 *to, __m512 v, __mmask16 lanes) { _mm256_mask_storeu_epi16(to, lanes, rounded(v)); }

// Two values in each lane, next to each other: the products sum over such pairs.
inline __m512i paired(__m256i first, __m256i second) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(first), _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16));
}

// The lanes of a vector from channel `first` on that are among `channels`.
inline __mmask16 within(int64_t channels, int64_t first) {
    return channels - first >= 16 ? 0xffff : (1 << (channels - first)) - 1;
}

// Row r of c becomes the sum over k of a[r * row + k * step] b[k]. a and b hold pairs; b and c have BLOCK columns, of which
// the first VECTORS vectors are computed.
template <int ROWS, bool ADD, int VECTORS = 4>
void product(const bf16 *a, int64_t row, int64_t step, const bf16 *b, int64_t pairs, float *c, int64_t c_row) {
    __m512 sum[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < VECTORS; j++)
            sum[r][j] = ADD ? _mm512_loadu_ps(c + r * c_row + 16 * j) : _mm512_setzero_ps();
    for (int64_t k = 0; k < pairs; k++, a += step, b += 2 * BLOCK) {
        __m512bh columns[VECTORS];
        for (int j = 0; j < VECTORS; j++) columns[j] = (__m512bh)_mm512_loadu_si512(b + 32 * j);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            const __m512bh value = (__m512bh)_mm512_set1_epi32(*(const int32_t *)(a + r * row));
            for (int j = 0; j < VECTORS; j++) sum[r][j] = _mm512_dpbf16_ps(sum[r][j], value, columns[j]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < VECTORS; j++) _mm512_storeu_ps(c + r * c_row + 16 * j, sum[r][j]);
}

template <bool ADD, int VECTORS = 4>
void products(int64_t rows, const bf16 *a, int64_t row, int64_t step, const bf16 *b, int64_t pairs, float *c,
              int64_t c_row) {
    constexpr int MOST = VECTORS == 4 ? HIGH : VECTORS == 3 ? 8 : 12; // as many sums as fit in registers, or are useful
    for (; rows >= MOST; rows -= MOST, a += MOST * row, c += MOST * c_row)
        product<MOST, ADD, VECTORS>(a, row, step, b, pairs, c, c_row);
    for (; rows >= 4; rows -= 4, a += 4 * row, c += 4 * c_row)
        product<4, ADD, VECTORS>(a, row, step, b, pairs, c, c_row);
    switch (rows) {
    case 3: return product<3, ADD, VECTORS>(a, row, step, b, pairs, c, c_row);
    case 2: return product<2, ADD, VECTORS>(a, row, step, b, pairs, c, c_row);
    case 1: return product<1, ADD, VECTORS>(a, row, step, b, pairs, c, c_row);
    }
}

// The same for any number of columns up to BLOCK, rounded up to whole vectors.
template <bool ADD>
inline void some_products(int64_t columns, int64_t rows, const bf16 *a, int64_t row, int64_t step, const bf16 *b,
                   int64_t pairs, float *c, int64_t c_row) {
    if (columns > 48) return products<ADD, 4>(rows, a, row, step, b, pairs, c, c_row);
    if (columns > 32) return products<ADD, 3>(rows, a, row, step, b, pairs, c, c_row);
    if (columns > 16) return products<ADD, 2>(rows, a, row, step, b, pairs, c, c_row);
    products<ADD, 1>(rows, a, row, step, b, pairs, c, c_row);
}

} // namespace
