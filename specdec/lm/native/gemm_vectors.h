/* Linear layers on vectors: weights [n / 16][k][16], activations f32. */
#pragma once
#include "finish.h"

/* Rows and panels whose sums fit the registers, beside weights and what they are multiplied with. CASES: of a switch over
 * the rows of a block, for code that knows how many they are. */
#ifdef __AVX512F__
enum { BLOCK_ROWS = 12, BLOCK_PANELS = 2 };
#define CASES(c) c(1) c(2) c(3) c(4) c(5) c(6) c(7) c(8) c(9) c(10) c(11) c(12)
#else
enum { BLOCK_ROWS = 6, BLOCK_PANELS = 1 };
#define CASES(c) c(1) c(2) c(3) c(4) c(5) c(6)
#endif

/* Blocks that so many rows are cut into, as few as there can be, all of nearly as many rows; and where each begins. */
static inline int64_t passes_of(int64_t rows) { return (rows + BLOCK_ROWS - 1) / BLOCK_ROWS; }
static inline int64_t first_of(int64_t pass, int64_t rows) { return rows * pass / passes_of(rows); }

static inline vn load_weights(const void *w, int64_t at, int kind) {
    if (kind == WEIGHTS_F32) return load_n_f32((const float *)w + at);
    if (kind == WEIGHTS_BF16) return load_n_bf16((const uint16_t *)w + at);
    return load_n_i8((const int8_t *)w + at);
}

/* `panels` panels from `panel` on, into c. */
static inline __attribute__((always_inline)) void vector_block(
    const Linear *linear, const float *a, int rows, int64_t panel, int panels, int kind, float (*c)[2 * LANES]) {
    vn acc[BLOCK_ROWS][BLOCK_PANELS * PARTS] = {};
    int64_t k = linear->k;
    for (int64_t i = 0; i < k; i++) {
        vn w[BLOCK_PANELS * PARTS];
        for (int p = 0; p < panels * PARTS; p++)
            w[p] = load_weights(linear->weights, ((panel + p / PARTS) * k + i) * LANES + p % PARTS * NATIVE, kind);
        for (int r = 0; r < rows; r++)
            for (int p = 0; p < panels * PARTS; p++) acc[r][p] += a[r * k + i] * w[p];
    }
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < panels * PARTS; p++) store_n(c[r] + p * NATIVE, acc[r][p]);
}

static inline __attribute__((always_inline)) void vector_rows(
    const Linear *linear, const float *a, int64_t row, int rows, int64_t panel, int panels, int kind, const Target *to) {
    float c[BLOCK_ROWS][2 * LANES] __attribute__((aligned(64)));
    a += row * linear->k;
    if (panels == BLOCK_PANELS) vector_block(linear, a, rows, panel, BLOCK_PANELS, kind, c);
    else for (int p = 0; p < panels; p++)
        vector_block(linear, a, rows, panel + p, 1, kind, (float (*)[2 * LANES])(c[0] + p * LANES));
    for (int r = 0; r < rows; r++) {
        if (to->mode == SWIGLU) finish(linear, to, row + r, panel, load_f32(c[r]), load_f32(c[r] + LANES), 0);
        else for (int p = 0; p < panels; p++) finish(linear, to, row + r, panel + p, load_f32(c[r] + p * LANES), (v16){}, 0);
    }
}

/* One or two panels. */
static inline __attribute__((always_inline)) void vector_panels(
    const Linear *linear, const float *a, int64_t rows, int64_t panel, int panels, int kind, const Target *to) {
    for (int64_t pass = 0; pass < passes_of(rows); pass++) {
        int64_t row = first_of(pass, rows);
        switch (first_of(pass + 1, rows) - row) {
#define ROWS(n) case n: vector_rows(linear, a, row, n, panel, panels, kind, to); break;
            CASES(ROWS)
#undef ROWS
        }
    }
}

static inline __attribute__((always_inline)) void vector_kind(
    const Linear *linear, const float *a, int64_t rows, int64_t from, int64_t end, int kind, const Target *to) {
    for (; from + 2 <= end; from += 2) vector_panels(linear, a, rows, from, 2, kind, to);
    for (int64_t row = 0; from < end && row < rows; row++) vector_rows(linear, a, row, 1, from, 1, kind, to);
}

static void gemm_vector(const Linear *linear, const float *a, int64_t rows, int64_t from, int64_t end, int kind, const Target *to) {
    if (kind == WEIGHTS_F32) vector_kind(linear, a, rows, from, end, WEIGHTS_F32, to);
    else if (kind == WEIGHTS_BF16) vector_kind(linear, a, rows, from, end, WEIGHTS_BF16, to);
    else vector_kind(linear, a, rows, from, end, WEIGHTS_INT8, to);
}
