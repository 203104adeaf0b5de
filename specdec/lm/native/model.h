/* What Python hands over. The structs mirror `network.py`, field by field. */
#pragma once
#include <stdint.h>

enum { BLOCK = 32 };  /* tokens of a KV block, as in specdec/lm/network.py */
enum { WEIGHTS_F32 = 0, WEIGHTS_BF16 = 1, WEIGHTS_INT8 = 2 };

typedef struct {
    const void *weights;  /* packed, see pack.py */
    const float *scales;  /* [n], int8 only */
    const float *bias;    /* [n] or NULL */
    int64_t n, k;         /* outputs, a multiple of 16; inputs, a multiple of 32 */
} Linear;

typedef struct {
    Linear qkv, out, gate_up, down;  /* gate_up: 16 gate columns, their 16 up columns, and so on */
    const float *norm_attention, *norm_mlp;
    const float *norm_query, *norm_key;  /* [head_dim] or NULL */
    int64_t windowed;                    /* whether a sliding window hides old columns from this layer */
} Layer;

typedef struct {
    int64_t layers, hidden, heads, kv_heads, head_dim;
    int64_t weights;       /* WEIGHTS_* */
    int64_t amx;           /* tiles: activations and KV are bf16, in their layouts */
    int64_t kv_bf16;       /* without tiles: KV in bf16 rather than f32 */
    double eps, scale;
    const Layer *layer;
    const float *norm_final;
    Linear head;
    const void *embedding;  /* f32 or bf16 [vocab, hidden]; NULL: the head's own weights, or none are needed */
} Model;

typedef struct {
    int64_t first, rows;      /* packed rows */
    int64_t start;            /* row in the sequence of the first */
    int64_t base;             /* columns from here on are masked */
    const uint8_t *visible;   /* [rows, start + rows - base]; NULL: row i sees columns up to start + i */
    int64_t window_base;      /* the same for layers with a sliding window */
    const uint8_t *window_visible;
    const int32_t *blocks;    /* the sequence's block table */
} Segment;

typedef struct {
    int64_t rows, segments, wanted;
    const int64_t *ids, *kv_rows, *wanted_rows;  /* [rows], [rows], [wanted] */
    const float *inputs;                         /* [rows, hidden]; NULL: the embeddings of the ids */
    int64_t tapped, taps;                        /* rows, and layers of which each gives its hidden state */
    const int64_t *tapped_rows, *tap;            /* [tapped]; [layers + 1], the place of the state after l layers, or -1 */
    const float *cos, *sin;                      /* [rows, head_dim / 2] */
    const Segment *segment;
    void *kv;
    float *logits;            /* [wanted, vocab rounded up to 16] */
    float *hidden;            /* [tapped, taps, hidden] */
    float *x, *qkv;           /* [rows, hidden], [rows, n of qkv] */
    void *a, *mixed, *inner;  /* inputs of linears, rows padded to 16: [hidden], [heads * head_dim], [inner], each to 32 */
    void *scratch;            /* per thread, `scratch_bytes` each */
    int64_t scratch_bytes, threads;
} Batch;
