/* A law in the making, its arithmetic eight doubles at a time, and the choice of its largest entries. */
#pragma once
#include <stdlib.h>
#include "vector.h"

typedef double d8 __attribute__((vector_size(64)));
typedef double d8u __attribute__((vector_size(64), aligned(8), may_alias));
typedef int64_t l8 __attribute__((vector_size(64)));
typedef uint64_t w8 __attribute__((vector_size(64)));
typedef float f8u __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t i8u __attribute__((vector_size(32), aligned(4), may_alias));

/* dense: m weights w, one per token; else m entries (ids ascending, weights p). mass: what weights are divided by. */
typedef struct {
    int64_t room, m;
    int dense;
    double raw_best, best, mass;
    double *w, *p;
    uint32_t *ids, *left;
} Law;

static inline d8 splat8(double x) { return x - (d8){}; }
static inline d8 wide(const float *x) { return __builtin_convertvector(*(const f8u *)x, d8); }
static inline w8 places(const uint32_t *ids) { return __builtin_convertvector(*(const i8u *)ids, w8); }
static inline w8 counting(int64_t i) { return (uint64_t)i + (w8){0, 1, 2, 3, 4, 5, 6, 7}; }
static inline int any(l8 x) { return (x[0] | x[1] | x[2] | x[3] | x[4] | x[5] | x[6] | x[7]) != 0; }
static inline double sum8(d8 x) { return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])); }

/* exp of x <= 0, to about one unit in the last place: 2^n exp(r), the Taylor sum to r^13. Subnormal results too. */
static inline d8 exp8(d8 x) {
    const double round = 0x1.8p52;
    l8 gone = x < -746.0;
    x = (d8)((l8)x & ~gone);
    d8 k = x * 1.4426950408889634 + round;
    l8 n = (l8)k - (l8)splat8(round);
    k -= round;
    d8 r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10;
    d8 s = r * (1.0 / 6227020800) + 1.0 / 479001600;
    s = s * r + 1.0 / 39916800;
    s = s * r + 1.0 / 3628800;
    s = s * r + 1.0 / 362880;
    s = s * r + 1.0 / 40320;
    s = s * r + 1.0 / 5040;
    s = s * r + 1.0 / 720;
    s = s * r + 1.0 / 120;
    s = s * r + 1.0 / 24;
    s = s * r + 1.0 / 6;
    s = s * r + 0.5;
    s = s * r + 1.0;
    s = s * r + 1.0;
    l8 half = n >> 1;
    s = s * (d8)((half + 1023) << 52) * (d8)((n - half + 1023) << 52);
    return (d8)((l8)s & ~gone);
}
static inline double exp1(double x) { return exp8(splat8(x))[0]; }

/* W of specdec/core/randomness.py: output number id of SplitMix64 started at key, in (0, 1). */
static inline d8 uniform8(uint64_t key, w8 ids) {
    w8 r = (ids + 1) * 0x9E3779B97F4A7C15u + key;
    r = (r ^ (r >> 30)) * 0xBF58476D1CE4E5B9u;
    r = (r ^ (r >> 27)) * 0x94D049BB133111EBu;
    r ^= r >> 31;
    return (__builtin_convertvector((l8)(r >> 11), d8) + 0.5) * 0x1p-53;
}
static inline double uniform1(uint64_t key, uint64_t id) {
    uint64_t r = (id + 1) * 0x9E3779B97F4A7C15u + key;
    r = (r ^ (r >> 30)) * 0xBF58476D1CE4E5B9u;
    r = (r ^ (r >> 27)) * 0x94D049BB133111EBu;
    r ^= r >> 31;
    return ((double)(r >> 11) + 0.5) * 0x1p-53;
}

/* NaN if there is one. */
static float largest_logit(const float *x, int64_t n) {
    v16 best = splat(-INFINITY);
    i16 strange = {};
    int64_t v = 0;
    for (; v + 16 <= n; v += 16) {
        v16 here = load_f32(x + v);
        strange |= here != here;
        best = vmax(here, best);
    }
    float top = -INFINITY;
    for (int i = 0; i < 16; i++) {
        if (strange[i]) return NAN;
        top = best[i] > top ? best[i] : top;
    }
    for (; v < n; v++) {
        if (x[v] != x[v]) return NAN;
        top = x[v] > top ? x[v] : top;
    }
    return top;
}
static double largest(const double *x, int64_t n) {
    d8 best = splat8(-INFINITY);
    int64_t v = 0;
    for (; v + 8 <= n; v += 8) {
        d8 here = *(const d8u *)(x + v);
        l8 more = here > best;
        best = (d8)(((l8)here & more) | ((l8)best & ~more));
    }
    double top = -INFINITY;
    for (int i = 0; i < 8; i++) top = best[i] > top ? best[i] : top;
    for (; v < n; v++) top = x[v] > top ? x[v] : top;
    return top;
}
static double smallest(const double *x, int64_t n) {
    double least = INFINITY;
    d8 best = splat8(INFINITY);
    int64_t v = 0;
    for (; v + 8 <= n; v += 8) {
        d8 here = *(const d8u *)(x + v);
        l8 less = here < best;
        best = (d8)(((l8)here & less) | ((l8)best & ~less));
    }
    for (int i = 0; i < 8; i++) least = best[i] < least ? best[i] : least;
    for (; v < n; v++) least = x[v] < least ? x[v] : least;
    return least;
}
static int64_t first_equal(const float *x, int64_t n, float value) {
    int64_t v = 0;
    for (; v + 64 <= n; v += 64) {
        int found = 0;
        for (int i = 0; i < 64; i++) found |= x[v + i] == value;
        if (found) break;
    }
    while (x[v] != value) v++;
    return v;
}
static void widen(double *out, const float *x, int64_t n) {
    for (int64_t v = 0; v < n; v++) out[v] = x[v];
}
static double lane_sum(const double *x, int64_t n) {
    d8 sums = {}, others = {};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) sums += *(const d8u *)(x + i), others += *(const d8u *)(x + i + 8);
    double rest = 0;
    for (; i < n; i++) rest += x[i];
    return sum8(sums + others) + rest;
}
static double running_sum(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum;
}
/* exp(score / t - best), of `scores` or, where given, of float `logits`. */
static void weigh(double *out, const double *scores, const float *logits, int64_t n, double t, double best) {
    int64_t v = 0;
    for (; v + 8 <= n; v += 8) {
        d8 x = logits ? wide(logits + v) : (d8) * (const d8u *)(scores + v);
        *(d8u *)(out + v) = exp8((t == 1.0 ? x : x / t) - best);
    }
    for (; v < n; v++) out[v] = exp1((logits ? logits[v] : scores[v]) / t - best);
}

static Law *scratch(int64_t vocab) {
    static _Thread_local Law law;
    if (law.room < vocab) {
        free(law.w), free(law.p), free(law.ids), free(law.left);
        size_t n = (size_t)vocab;
        law.w = malloc(n * 8), law.p = malloc(n * 8), law.ids = malloc(n * 4), law.left = malloc(n * 4);
        law.room = law.w && law.p && law.ids && law.left ? vocab : 0;
    }
    law.m = vocab, law.dense = 1;
    return law.room < vocab ? 0 : &law;
}

/* The entries of w that are at least `least`, and above -inf, into (ids, p). */
static void narrow(Law *law, double least) {
    int64_t n = law->m, m = 0, v = 0;
    if (least == -INFINITY) least = -1.7976931348623157e308;
#ifdef __AVX512VL__
    __m256i ids = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    for (; v + 8 <= n; v += 8, ids = _mm256_add_epi32(ids, _mm256_set1_epi32(8))) { /* writes eight, m <= v */
        __m512d w = _mm512_loadu_pd(law->w + v);
        __mmask8 held = _mm512_cmp_pd_mask(w, _mm512_set1_pd(least), _CMP_GE_OQ);
        _mm512_storeu_pd(law->p + m, _mm512_maskz_compress_pd(held, w));
        _mm256_storeu_si256((__m256i *)(law->ids + m), _mm256_maskz_compress_epi32(held, ids));
        m += __builtin_popcount(held);
    }
#endif
    for (; v < n; v++) {
        law->ids[m] = (uint32_t)v, law->p[m] = law->w[v];
        m += law->w[v] >= least;
    }
    law->m = m, law->dense = 0;
}

/* Orders as the numbers do; 0.0 and -0.0 are one. */
static inline uint64_t rank(double x) {
    union { double x; int64_t i; uint64_t bits; } word = {x + 0.0};
    return word.i < 0 ? ~word.bits : word.bits | (1ull << 63);
}

/* The entries `from` of p (all n where it is null), those in bucket `at` of the ranks above `floor`, into law->left. */
static int64_t only(Law *law, const uint32_t *from, int64_t n, uint64_t floor, int shift, uint64_t at) {
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t place = from ? from[i] : (uint32_t)i;
        law->left[kept] = place;
        kept += (rank(law->p[place]) - floor) >> shift == at;
    }
    return kept;
}

/* Cuts (ids, p) to its shortest prefix, falling by p and rising by id, whose mass (the sum of p; with `count`, the
 * number of entries) is at least goal, and to one entry at least. 0: a sum lies within `rounding` of the goal.
 * Finds the place by buckets of equal leading digits, then by buckets of that bucket, without sorting more than a few. */
static int keep_top(Law *law, int count, double goal, double rounding) {
    enum { DIGIT = 10, FEW = 24 };
    double masses[1 << DIGIT], before = 0;
    uint32_t *left = law->left, numbers[1 << DIGIT];
    const uint32_t *from = 0;
    int64_t n = law->m;
    uint64_t floor = rank(smallest(law->p, n)), span = rank(largest(law->p, n)) - floor;
    int shift = 0;
    while (span >> shift >= 1 << DIGIT) shift++;
    for (; span; shift = shift > DIGIT ? shift - DIGIT : 0) {
        memset(masses, 0, sizeof masses), memset(numbers, 0, sizeof numbers);
        for (int64_t i = 0; i < n; i++) {
            double p = law->p[from ? from[i] : i];
            uint64_t digit = (rank(p) - floor) >> shift;
            masses[digit] += p;
            numbers[digit]++;
        }
        int64_t at = (1 << DIGIT) - 1, last = at;
        double mass = 0;
        for (; at >= 0; at--) {
            if (!numbers[at]) continue;
            last = at, mass = count ? numbers[at] : masses[at];
            if (before + mass >= goal) break;
            before += mass;
        }
        if (at < 0) before -= mass, at = last; /* rounding: all of it, and the last check will say so */
        n = only(law, from, n, floor, shift, (uint64_t)at);
        from = left, floor += (uint64_t)at << shift;
        if (n <= FEW || !shift) break;
    }
    if (!from) n = only(law, from, n, floor, 0, 0); /* all are equal */
    for (int64_t i = 1; n <= FEW && i < n; i++) {
        uint32_t place = left[i];
        int64_t j = i;
        for (; j > 0 && law->p[left[j - 1]] < law->p[place]; j--) left[j] = left[j - 1];
        left[j] = place;
    }
    int64_t taken = 0;
    for (; taken < n; taken++) {
        int first = taken == 0 && before == 0;
        if (!first && fabs(before - goal) <= rounding) return 0;
        if (!first && !(before < goal)) break;
        before += count ? 1.0 : law->p[left[taken]];
    }
    if (taken == 0 || (taken == n && fabs(before - goal) <= rounding)) return 0;
    double least = law->p[left[taken - 1]];
    uint32_t last = left[taken - 1]; /* equal ones with higher ids are out */
    int64_t m = 0;
    for (int64_t i = 0; i < law->m; i++) {
        double p = law->p[i];
        law->ids[m] = law->ids[i], law->p[m] = p;
        m += p > least || (p == least && i <= last);
    }
    law->m = m;
    return 1;
}

/* Only the `k` largest, ties to the lowest ids; fewer where fewer are possible. */
static void narrow_to_largest(Law *law, int64_t k) {
    if (law->dense) {
        int64_t n = law->m;
        double least = -INFINITY;
        if (k <= n / 16) { /* k disjoint parts: k entries are at least as large as the smallest of their maxima */
            least = INFINITY;
            for (int64_t part = 0; part < k; part++) {
                int64_t begin = part * n / k, end = (part + 1) * n / k;
                double top = largest(law->w + begin, end - begin);
                least = top < least ? top : least;
            }
        }
        narrow(law, least);
    }
    if (law->m > k) keep_top(law, 1, (double)k, -1.0);
}
