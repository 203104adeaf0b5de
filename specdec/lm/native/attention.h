/* Attention over paged KV, in work items: one KV head of one segment, and 16 of its rows with the query group folded in.
 * Scores first, for all columns, then one softmax, then the weighted sum in the order of the columns: what a row gets does
 * not depend on the rows beside it, and columns behind the last one it sees add exact zeros. */
#pragma once
#include "gemm.h"

enum { FOLDED = 16, MAX_HEAD_DIM = 256 };

typedef struct { int32_t segment, head, first; } Item;

static inline int64_t padded_dim(const Model *m) { return ROUND_UP(m->head_dim, 32); }
static inline int64_t kv_size(const Model *m) { return m->amx || m->kv_bf16 ? 2 : 4; }

/* Elements before the keys (which = 0) or values (1) of one head in one block. */
static inline int64_t kv_at(const Model *m, int64_t block, int64_t layer, int64_t head, int64_t which) {
    return (((block * m->layers + layer) * m->kv_heads + head) * 2 + which) * padded_dim(m) * BLOCK;
}

/* Element of dimension d of the token in slot t, for the layout that the arithmetic wants to read. */
static inline int64_t key_at(const Model *m, int64_t t, int64_t d) {
    int64_t half = t / 16 * padded_dim(m) * 16;
    return m->amx ? half + d / 32 * TILE + d % 32 / 2 * 32 + t % 16 * 2 + d % 2 : half + d * 16 + t % 16;
}
static inline int64_t value_at(const Model *m, int64_t t, int64_t d) {
    return m->amx ? d / 16 * TILE + t / 2 * 32 + d % 16 * 2 + t % 2 : t * padded_dim(m) + d;
}

static inline void kv_put(const Model *m, void *kv, int64_t at, float x) {
    if (kv_size(m) == 2) ((uint16_t *)kv)[at] = to_bf16(x);
    else ((float *)kv)[at] = x;
}

/* Into tiles: pairs of a key lie 32 elements apart, the dimensions of a value 2. */
static void write_tiles(const Model *m, uint16_t *keys, uint16_t *values, int64_t slot, const float *key, const float *value) {
    uint16_t rounded[2][MAX_HEAD_DIM + 1];
    store_bf16s(rounded[0], key, m->head_dim);
    store_bf16s(rounded[1], value, m->head_dim);
    rounded[0][m->head_dim] = 0;
    keys += key_at(m, slot, 0);
    values += value_at(m, slot, 0);
    for (int64_t d = 0; d < m->head_dim; d += 2) memcpy(keys + d * 16, rounded[0] + d, 4);
    for (int64_t d = 0; d < m->head_dim; d++) values[d / 16 * TILE + d % 16 * 2] = rounded[1][d];
}

static void write_kv(const Model *m, void *kv, int64_t layer, int64_t kv_row, const float *key, const float *value) {
    int64_t block = kv_row / BLOCK, slot = kv_row % BLOCK;
    for (int64_t head = 0; head < m->kv_heads; head++) {
        int64_t keys = kv_at(m, block, layer, head, 0), values = kv_at(m, block, layer, head, 1);
        if (m->amx) {
            uint16_t *tiles = kv;
            write_tiles(m, tiles + keys, tiles + values, slot, key + head * m->head_dim, value + head * m->head_dim);
            continue;
        }
        for (int64_t d = 0; d < m->head_dim; d++) {
            kv_put(m, kv, keys + key_at(m, slot, d), key[head * m->head_dim + d]);
            kv_put(m, kv, values + value_at(m, slot, d), value[head * m->head_dim + d]);
        }
    }
}

/* Columns that row `row` of the segment may see end here. */
static inline int64_t columns_of(const Segment *s, int64_t row, const uint8_t *visible) {
    return visible ? s->start + s->rows : s->start + row + 1;
}

static void mask(const Segment *s, int64_t row, int windowed, float *scores, int64_t columns) {
    const uint8_t *visible = windowed ? s->window_visible : s->visible;
    int64_t base = windowed ? s->window_base : s->base, end = columns_of(s, row, visible);
    if (visible) {
        const uint8_t *sees = visible + row * (end - base) - base;
        for (int64_t c = base; c < end; c++)
            if (!sees[c]) scores[c] = -INFINITY;
    }
    for (int64_t c = end; c < columns; c++) scores[c] = -INFINITY;
}

/* scores -> weights, not yet divided by their sum, which is returned. */
static float soften(const float *scores, int64_t columns, float scale, float *weights, uint16_t *narrow) {
    v16 best = splat(-INFINITY), total = {};
    for (int64_t c = 0; c < columns; c += LANES) best = vmax(load_f32(scores + c), best);
    float most = max_lanes(best);
    for (int64_t c = 0; c < columns; c += LANES) {
        v16 w = vexp((load_f32(scores + c) - most) * scale);
        total += w;
        if (narrow) store_bf16(narrow + c, w);
        else store_f32(weights + c, w);
    }
    return sum_lanes(total);
}

#ifdef __AMX_BF16__
static void attend_tiles(const Model *m, const Batch *b, const Segment *s, int64_t layer, int64_t head, const float **query,
                         float **out, int64_t count, const int64_t *rows, int64_t columns, int windowed, char *scratch) {
    int64_t dim = padded_dim(m), parts = dim / 32;
    float *scores = (float *)scratch;
    uint16_t *weights = (uint16_t *)(scores + FOLDED * columns);
    uint16_t q[FOLDED * MAX_HEAD_DIM] __attribute__((aligned(64)));
    float tile[4][256] __attribute__((aligned(64))), sums[FOLDED];
    const uint16_t *kv = b->kv;
    configure(0, 2, count);
    memset(q, 0, (size_t)(FOLDED * dim * 2));
    for (int64_t i = 0; i < count; i++) store_bf16s(q + i * dim, query[i], m->head_dim);
    for (int64_t c = 0; c < columns; c += BLOCK) {
        const uint16_t *keys = kv + kv_at(m, s->blocks[c / BLOCK], layer, head, 0);
        _tile_zero(0); _tile_zero(1);
        for (int64_t part = 0; part < parts; part++) {
            _tile_loadd(2, q + part * 32, dim * 2);
            _tile_loadd(3, keys + part * TILE, 64); _tile_dpbf16ps(0, 2, 3);
            _tile_loadd(4, keys + (parts + part) * TILE, 64); _tile_dpbf16ps(1, 2, 4);
        }
        _tile_stored(0, scores + c, columns * 4);
        _tile_stored(1, scores + c + 16, columns * 4);
    }
    for (int64_t i = 0; i < count; i++) {
        mask(s, rows[i], windowed, scores + i * columns, columns);
        sums[i] = soften(scores + i * columns, columns, (float)m->scale, 0, weights + i * columns);
    }
    for (int64_t part = 0; part < dim / 16; part += 2) {
        _tile_zero(0); _tile_zero(1);
        for (int64_t c = 0; c < columns; c += BLOCK) {
            const uint16_t *values = kv + kv_at(m, s->blocks[c / BLOCK], layer, head, 1);
            _tile_loadd(2, weights + c, columns * 2);
            _tile_loadd(3, values + part * TILE, 64); _tile_dpbf16ps(0, 2, 3);
            _tile_loadd(4, values + (part + 1) * TILE, 64); _tile_dpbf16ps(1, 2, 4);
        }
        _tile_stored(0, tile[0], 64); _tile_stored(1, tile[1], 64);
        for (int64_t i = 0; i < count; i++)
            for (int64_t half = 0; half < 2; half++) store_f32(out[i] + (part + half) * 16, load_f32(tile[half] + i * 16) / sums[i]);
    }
}
#endif

static inline vn kv_load(const void *kv, int64_t at, int narrow) {
    return narrow ? load_n_bf16((const uint16_t *)kv + at) : load_n_f32((const float *)kv + at);
}

typedef struct {
    const Model *model;
    const Segment *segment;
    const void *kv;
    int64_t layer, head, columns;
    const float **query;
    float **out, *scores, *sums;  /* scores: [rows, columns] */
} Attended;

/* Of the rows from `first` on with all columns. */
static inline __attribute__((always_inline)) void score_rows(const Attended *t, int64_t first, int rows, int narrow) {
    const Model *m = t->model;
    for (int64_t c = 0; c < t->columns; c += LANES) {
        int64_t keys = kv_at(m, t->segment->blocks[c / BLOCK], t->layer, t->head, 0) + c % BLOCK * padded_dim(m);
        vn acc[BLOCK_ROWS][PARTS] = {};
        for (int64_t d = 0; d < m->head_dim; d++)
            for (int p = 0; p < PARTS; p++) {
                vn key = kv_load(t->kv, keys + d * LANES + p * NATIVE, narrow);
                for (int i = 0; i < rows; i++) acc[i][p] += t->query[first + i][d] * key;
            }
        for (int i = 0; i < rows; i++)
            for (int p = 0; p < PARTS; p++) store_n(t->scores + (first + i) * t->columns + c + p * NATIVE, acc[i][p]);
    }
}

/* The weighted sums of the values for the rows from `first` on. */
static inline __attribute__((always_inline)) void mix_rows(const Attended *t, int64_t first, int rows, int narrow) {
    const Model *m = t->model;
    int64_t dim = padded_dim(m);
    for (int64_t at = 0; at < m->head_dim; at += LANES) {
        vn acc[BLOCK_ROWS][PARTS] = {};
        for (int64_t c = 0; c < t->columns; c += BLOCK) {
            int64_t values = kv_at(m, t->segment->blocks[c / BLOCK], t->layer, t->head, 1) + at;
            const float *weights = t->scores + first * t->columns + c;
            for (int64_t i = 0; i < BLOCK; i++)
                for (int p = 0; p < PARTS; p++) {
                    vn value = kv_load(t->kv, values + i * dim + p * NATIVE, narrow);
                    for (int r = 0; r < rows; r++) acc[r][p] += weights[r * t->columns + i] * value;
                }
        }
        for (int r = 0; r < rows; r++)
            for (int64_t d = 0; d < LANES && at + d < m->head_dim; d++)
                t->out[first + r][at + d] = acc[r][d / NATIVE][d % NATIVE] / t->sums[first + r];
    }
}

/* `score_rows` or `mix_rows` of all rows, a block after the other. */
static inline __attribute__((always_inline)) void each_block(const Attended *t, int64_t count, int mix, int narrow) {
    for (int64_t pass = 0; pass < passes_of(count); pass++) {
        int64_t first = first_of(pass, count);
        switch (first_of(pass + 1, count) - first) {
#define ROWS(n) case n: if (mix) mix_rows(t, first, n, narrow); else score_rows(t, first, n, narrow); break;
            CASES(ROWS)
#undef ROWS
        }
    }
}

static inline __attribute__((always_inline)) void attend_kind(
    const Attended *t, int64_t count, const int64_t *rows, int windowed, int narrow) {
    each_block(t, count, 0, narrow);
    for (int64_t i = 0; i < count; i++) {
        float *scores = t->scores + i * t->columns;
        mask(t->segment, rows[i], windowed, scores, t->columns);
        t->sums[i] = soften(scores, t->columns, (float)t->model->scale, scores, 0);
    }
    each_block(t, count, 1, narrow);
}

static void attend_vectors(const Model *m, const Batch *b, const Segment *s, int64_t layer, int64_t head, const float **query,
                           float **out, int64_t count, const int64_t *rows, int64_t columns, int windowed, char *scratch) {
    float sums[FOLDED];
    Attended attended = {m, s, b->kv, layer, head, columns, query, out, (float *)scratch, sums};
    if (kv_size(m) == 2) attend_kind(&attended, count, rows, windowed, 1);
    else attend_kind(&attended, count, rows, windowed, 0);
}

static void attend(const Model *m, const Batch *b, int64_t layer, Item item, char *scratch) {
    const Segment *s = b->segment + item.segment;
    int windowed = m->layer[layer].windowed != 0 && s->window_visible;
    int64_t group = m->heads / m->kv_heads, count = s->rows * group - item.first, columns = 0;
    int64_t rows[FOLDED], width = m->layer[layer].qkv.n;
    const float *query[FOLDED];
    float mixed[FOLDED][MAX_HEAD_DIM], *out[FOLDED];
    if (count > FOLDED) count = FOLDED;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = rows[i] = (item.first + i) / group, q = item.head * group + (item.first + i) % group;
        int64_t end = columns_of(s, row, windowed ? s->window_visible : s->visible);
        if (end > columns) columns = end;
        query[i] = b->qkv + (s->first + row) * width + q * m->head_dim;
        out[i] = mixed[i];
    }
    columns = ROUND_UP(columns, BLOCK);
#ifdef __AMX_BF16__
    if (m->amx) attend_tiles(m, b, s, layer, item.head, query, out, count, rows, columns, windowed, scratch);
    else
#endif
        attend_vectors(m, b, s, layer, item.head, query, out, count, rows, columns, windowed, scratch);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = (s->first + rows[i]) * m->layer[layer].out.k + (item.head * group + (item.first + i) % group) * m->head_dim;
        if (m->amx) store_bf16s((uint16_t *)b->mixed + at, mixed[i], m->head_dim);
        else memcpy((float *)b->mixed + at, mixed[i], (size_t)m->head_dim * 4);
    }
}
