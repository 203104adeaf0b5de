/* Sixteen floats at a time, in the compiler's own vector types: AVX-512 makes one register of it, AVX2 two, NEON four. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

typedef float v16 __attribute__((vector_size(64)));
typedef float v16u __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t i16 __attribute__((vector_size(64)));
typedef uint32_t u16 __attribute__((vector_size(64)));
typedef uint16_t h16u __attribute__((vector_size(32), aligned(2), may_alias));

#define LANES 16
#define ROUND_UP(n, m) (((n) + (m) - 1) / (m) * (m))

static inline v16 splat(float x) { return x - (v16){}; }
static inline v16 load_f32(const float *p) { return *(const v16u *)p; }
static inline void store_f32(float *p, v16 x) { *(v16u *)p = x; }
/* What one register holds, for loops whose speed is that of the processor: compilers keep nothing wider in registers
 * there, and make ten instructions out of a conversion that the processor has one for. */
#if defined __AVX512F__
enum { NATIVE = 16 };
#elif defined __AVX2__
enum { NATIVE = 8 };
#else
enum { NATIVE = 4 };
#endif
enum { PARTS = LANES / NATIVE };
typedef float vn __attribute__((vector_size(4 * NATIVE)));
typedef float vnu __attribute__((vector_size(4 * NATIVE), aligned(4), may_alias));
typedef uint32_t un __attribute__((vector_size(4 * NATIVE)));
typedef int32_t in __attribute__((vector_size(4 * NATIVE)));
typedef uint16_t hnu __attribute__((vector_size(2 * NATIVE), aligned(2), may_alias));
typedef int8_t bnu __attribute__((vector_size(NATIVE), aligned(1), may_alias));

static inline vn load_n_f32(const float *p) { return *(const vnu *)p; }
static inline void store_n(float *p, vn x) { *(vnu *)p = x; }
static inline vn load_n_bf16(const uint16_t *p) {
#if defined __AVX512F__
    return (vn)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
#elif defined __AVX2__
    return (vn)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
#else
    return (vn)(__builtin_convertvector(*(const hnu *)p, un) << 16);
#endif
}
static inline vn load_n_i8(const int8_t *p) {
#if defined __AVX512F__
    return (vn)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif defined __AVX2__
    return (vn)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
    return __builtin_convertvector(__builtin_convertvector(*(const bnu *)p, in), vn);
#endif
}
/* To nearest, ties to even; NaN stays NaN. */
static inline void store_bf16(uint16_t *p, v16 x) {
#ifdef __AVX512BF16__
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
    u16 bits = (u16)x;
    u16 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    u16 quiet = (bits >> 16) | 0x40;
    u16 is_nan = (u16)(x != x);
    *(h16u *)p = __builtin_convertvector((rounded & ~is_nan) | (quiet & is_nan), h16u);
#endif
}
static inline uint16_t to_bf16(float x) {
    uint16_t rounded[LANES];
    store_bf16(rounded, splat(x));
    return rounded[0];
}
/* n values, the last of them alone where n is no multiple of 16. */
static inline void store_bf16s(uint16_t *to, const float *from, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) store_bf16(to + i, load_f32(from + i));
    for (; i < n; i++) to[i] = to_bf16(from[i]);
}
static inline float from_bf16(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline v16 pick(i16 mask, v16 a, v16 b) { return (v16)((mask & (i16)a) | (~mask & (i16)b)); }
static inline v16 vmax(v16 a, v16 b) { return pick(a > b, a, b); }

/* Always in the same order: a sum must not depend on what stands beside it. */
static inline float sum_lanes(v16 x) {
    float s = 0;
    for (int i = 0; i < LANES; i++) s += x[i];
    return s;
}
static inline float max_lanes(v16 x) {
    float m = x[0];
    for (int i = 1; i < LANES; i++) m = x[i] > m ? x[i] : m;
    return m;
}

/* e^x to 2 ulp: range reduction by powers of two and a polynomial. Exactly 0 below -87, where a masked score lands. */
static inline v16 vexp(v16 x) {
    v16 y = vmax(x, splat(-87.0f));
    y = pick(y < splat(88.0f), y, splat(88.0f));
    v16 shifted = y * 1.44269504088896341f + 12582912.0f;
    v16 n = shifted - 12582912.0f;
    v16 r = y - n * 0.693359375f - n * -2.12194440e-4f;
    v16 p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    i16 exponent = (i16)shifted << 23;  /* the low bits of `shifted` are n */
    v16 e = (v16)((i16)p + exponent);
    return pick(x < splat(-87.0f), splat(0.0f), pick(x != x, x, e));
}
