// Products of float32 matrices for any CPU, and their helpers: vectors are as wide as the compiler's target supports.
// Images are dense and channels-last.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace {

#ifdef __AVX512F__
constexpr int64_t WIDE = 16, HIGH = 12; // numbers in a vector; rows of a product: its sums fit in registers
#else
constexpr int64_t WIDE = 8, HIGH = 6;
#endif
using vec = float __attribute__((vector_size(4 * WIDE)));
using loose = float __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));

constexpr int64_t PANEL = 2 * WIDE; // columns of a product
constexpr int64_t APART = 16;       // gap, in numbers, between rows: they then use different cache sets

constexpr int64_t over(int64_t count, int64_t by) { return (count + by - 1) / by; } // rounded up
constexpr int64_t up(int64_t count, int64_t to) { return over(count, to) * to; }

struct Free {
    void operator()(void *memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<float[], Free>;
inline Buffer buffer(int64_t count) { return Buffer((float *)std::aligned_alloc(64, up(count * 4, 64))); }

inline vec load(const float *from) { return *(const loose *)from; }
inline void store(float *to, vec v) { *(loose *)to = v; }
inline vec load(const float *from, int64_t count) { // 0 after the first `count` numbers
    if (count >= WIDE) return load(from);
    float some[WIDE] = {};
    std::memcpy(some, from, count * 4);
    return load(some);
}
inline void store(float *to, vec v, int64_t count) {
    if (count >= WIDE) return store(to, v);
    std::memcpy(to, &v, count * 4);
}

// The positions of the numbers that a product sums over: `lines` lines of `count` numbers. Numbers are `step` apart,
// lines are `line` apart.
struct Walk {
    int64_t step, line = 0;
};

// Sets row r of c to, or adds to it, the sum over k of a[r * row + k] b[k], where k walks: ROWS rows, PANEL columns.
template <int ROWS, bool ADD>
void product(const float *a, int64_t row, Walk of_a, const float *b, Walk of_b, int64_t count, int64_t lines, float *c,
             int64_t c_row) {
    vec sum[ROWS][2] = {};
    if (ADD)
        for (int r = 0; r < ROWS; r++) __builtin_prefetch(c + r * c_row), __builtin_prefetch(c + r * c_row + WIDE);
    for (int64_t y = 0; y < lines; y++, a += of_a.line - count * of_a.step, b += of_b.line - count * of_b.step)
        for (int64_t k = 0; k < count; k++, a += of_a.step, b += of_b.step) {
            const vec b0 = load(b), b1 = load(b + WIDE);
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; r++) {
                const vec value = a[r * row] - vec{};
                sum[r][0] += value * b0, sum[r][1] += value * b1;
            }
        }
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < 2; j++) {
            float *to = c + r * c_row + j * WIDE;
            store(to, ADD ? load(to) + sum[r][j] : sum[r][j]);
        }
}

} // namespace
