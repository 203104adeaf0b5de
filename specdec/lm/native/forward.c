/* One forward of a Llama-shaped decoder over a ragged batch: the whole model in one call, one team of threads. The residual
 * stream, norms, rotary embedding and softmax are float32. */
#ifdef __AMX_BF16__
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>
#endif
#include <omp.h>
#include <stdlib.h>
#include "attention.h"

/* 1: this processor, as compiled for, lets us use bf16 tiles. */
int64_t specdec_tiles(void) {
#ifdef __AMX_BF16__
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return 0;
#endif
}

static void put(const Model *m, void *a, int64_t at, v16 x) {
    if (m->amx) store_bf16((uint16_t *)a + at, x);
    else store_f32((float *)a + at, x);
}

/* Widths are multiples of 16 here: hidden sizes are, or Python refuses the model. */
static float inverse_norm(const float *x, int64_t n, double eps) {
    v16 squares = {};
    for (int64_t i = 0; i < n; i += LANES) {
        v16 v = load_f32(x + i);
        squares += v * v;
    }
    return 1.0f / sqrtf(sum_lanes(squares) / (float)n + (float)eps);
}

static void norm_row(const Model *m, const float *x, const float *weight, void *a, int64_t row, int64_t stride) {
    float scale = inverse_norm(x, m->hidden, m->eps);
    for (int64_t i = 0; i < m->hidden; i += LANES) put(m, a, row * stride + i, load_f32(x + i) * scale * load_f32(weight + i));
}

static void embed_row(const Model *m, int64_t id, float *x) {
    int64_t k = m->head.k, at = id / 16 * k * 16, column = id % 16;
    for (int64_t i = 0; i < m->hidden; i++) {
        if (m->embedding)
            x[i] = m->weights == WEIGHTS_F32 ? ((const float *)m->embedding)[id * m->hidden + i]
                                             : from_bf16(((const uint16_t *)m->embedding)[id * m->hidden + i]);
        else if (m->amx)
            x[i] = from_bf16(((const uint16_t *)m->head.weights)[at + i / 32 * TILE + i % 32 / 2 * 32 + column * 2 + i % 2]);
        else if (m->weights == WEIGHTS_BF16)
            x[i] = from_bf16(((const uint16_t *)m->head.weights)[at + i * 16 + column]);
        else
            x[i] = ((const float *)m->head.weights)[at + i * 16 + column];
    }
}

/* The residual stream of a row at its start. */
static void begin_row(const Model *m, const Batch *b, int64_t row) {
    float *x = b->x + row * m->hidden;
    if (b->inputs) memcpy(x, b->inputs + row * m->hidden, (size_t)m->hidden * sizeof(float));
    else embed_row(m, b->ids[row], x);
}

/* Rows whose hidden state after `layer` layers is wanted. */
static int64_t tapped_after(const Batch *b, int64_t layer) { return b->tap[layer] < 0 ? 0 : b->tapped; }

static void tap_row(const Model *m, const Batch *b, int64_t layer, int64_t i) {
    const float *x = b->x + b->tapped_rows[i] * m->hidden;
    memcpy(b->hidden + (i * b->taps + b->tap[layer]) * m->hidden, x, (size_t)m->hidden * sizeof(float));
}

static void rotate(float *x, const float *cos, const float *sin, int64_t dim) {
    int64_t half = dim / 2;
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], c = x[i + half];
        x[i] = a * cos[i] - c * sin[i];
        x[i + half] = c * cos[i] + a * sin[i];
    }
}

static void head_norm(const Model *m, float *x, const float *weight) {
    float squares = 0;
    for (int64_t i = 0; i < m->head_dim; i++) squares += x[i] * x[i];
    float scale = 1.0f / sqrtf(squares / (float)m->head_dim + (float)m->eps);
    for (int64_t i = 0; i < m->head_dim; i++) x[i] *= scale * weight[i];
}

/* Norms and rotates queries and keys of one row in place, and keeps its keys and values. */
static void place_row(const Model *m, const Batch *b, int64_t layer, int64_t row) {
    const Layer *l = m->layer + layer;
    float *q = b->qkv + row * l->qkv.n, *k = q + m->heads * m->head_dim, *v = k + m->kv_heads * m->head_dim;
    const float *cos = b->cos + row * (m->head_dim / 2), *sin = b->sin + row * (m->head_dim / 2);
    for (int64_t head = 0; head < m->heads + m->kv_heads; head++) {
        const float *weight = head < m->heads ? l->norm_query : l->norm_key;
        if (weight) head_norm(m, q + head * m->head_dim, weight);
        rotate(q + head * m->head_dim, cos, sin, m->head_dim);
    }
    write_kv(m, b->kv, layer, b->kv_rows[row], k, v);
}

static Item *items_of(const Model *m, const Batch *b, int64_t *count) {
    int64_t group = m->heads / m->kv_heads, n = 0;
    for (int64_t s = 0; s < b->segments; s++) n += m->kv_heads * ((b->segment[s].rows * group + FOLDED - 1) / FOLDED);
    Item *items = malloc((size_t)n * sizeof(Item));
    *count = 0;
    for (int64_t s = 0; items && s < b->segments; s++)
        for (int64_t first = 0; first < b->segment[s].rows * group; first += FOLDED)
            for (int64_t head = 0; head < m->kv_heads; head++) items[(*count)++] = (Item){(int32_t)s, (int32_t)head, (int32_t)first};
    return items;
}

static void layer_forward(const Model *m, const Batch *b, int64_t layer, const Item *items, int64_t num_items, Member *me) {
    const Layer *l = m->layer + layer;
    EACH(i, b->rows + tapped_after(b, layer)) {
        if (i < b->rows) norm_row(m, b->x + i * m->hidden, l->norm_attention, b->a, i, l->qkv.k);
        else tap_row(m, b, layer, i - b->rows);
    }
    meet(me);
    gemm(m, &l->qkv, b->a, b->rows, &(Target){STORE, b->qkv, 0, l->qkv.n}, me);
    EACH(row, b->rows) place_row(m, b, layer, row);
    meet(me);
    EACH(i, num_items) attend(m, b, layer, items[i], (char *)b->scratch + me->thread * b->scratch_bytes);
    meet(me);
    gemm(m, &l->out, b->mixed, b->rows, &(Target){ADD, b->x, 0, m->hidden}, me);
    EACH(row, b->rows) norm_row(m, b->x + row * m->hidden, l->norm_mlp, b->a, row, l->gate_up.k);
    meet(me);
    gemm(m, &l->gate_up, b->a, b->rows, &(Target){SWIGLU, 0, b->inner, l->down.k}, me);
    gemm(m, &l->down, b->inner, b->rows, &(Target){ADD, b->x, 0, m->hidden}, me);
}
enum { LAYER_PHASES = 8, OTHER_PHASES = 3 };

static void run(const Model *m, const Batch *b, const Item *items, int64_t num_items, Member *me) {
    EACH(row, b->rows) begin_row(m, b, row);
    meet(me);
    for (int64_t layer = 0; layer < m->layers; layer++) layer_forward(m, b, layer, items, num_items, me);
    EACH(i, b->wanted + tapped_after(b, m->layers)) {
        if (i < b->wanted) norm_row(m, b->x + b->wanted_rows[i] * m->hidden, m->norm_final, b->a, i, m->head.k);
        else tap_row(m, b, m->layers, i - b->wanted);
    }
    meet(me);
    gemm(m, &m->head, b->a, b->wanted, &(Target){STORE, b->logits, 0, m->head.n}, me);
#ifdef __AMX_BF16__
    if (m->amx) _tile_release();
#endif
}

/* 0, or 1 where memory ran out before anything was computed. */
int64_t specdec_forward(const Model *m, const Batch *b) {
    int64_t num_items;
    Item *items = items_of(m, b, &num_items);
    Counter *counters = calloc((size_t)(m->layers * LAYER_PHASES + OTHER_PHASES), sizeof(Counter));
    if (items && counters) {
        Team team = {.counters = counters};
#pragma omp parallel num_threads((int)b->threads)
        {
#pragma omp single
            team.threads = omp_get_num_threads();
            run(m, b, items, num_items, &(Member){&team, 0, omp_get_thread_num()});
        }
    }
    int64_t failed = !items || !counters;
    free(items);
    free(counters);
    return failed;
}

/* Rows of the KV, read into or written from float32 [rows, layers, 2, kv_heads, head_dim]. */
void specdec_kv_rows(const Model *m, void *kv, const int64_t *rows, int64_t n, float *content, int64_t writing) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t layer = 0; layer < m->layers; layer++)
            for (int64_t which = 0; which < 2; which++)
                for (int64_t head = 0; head < m->kv_heads; head++) {
                    int64_t base = kv_at(m, rows[i] / BLOCK, layer, head, which), slot = rows[i] % BLOCK;
                    float *c = content + (((i * m->layers + layer) * 2 + which) * m->kv_heads + head) * m->head_dim;
                    for (int64_t d = 0; d < m->head_dim; d++) {
                        int64_t at = base + (which ? value_at(m, slot, d) : key_at(m, slot, d));
                        if (writing) kv_put(m, kv, at, c[d]);
                        else c[d] = kv_size(m) == 2 ? from_bf16(((const uint16_t *)kv)[at]) : ((const float *)kv)[at];
                    }
                }
}
