/* Linear layers on bf16 tiles: weights [n / 16][k / 32][16 pairs][16][2], activations bf16. */
#pragma once
#include "finish.h"
#ifdef __AMX_BF16__
#include <immintrin.h>
#endif

enum { TILE = 512 };  /* elements of a weight tile: 16 pairs of inputs x 16 outputs x 2 */

#ifdef __AMX_BF16__
enum { TILE_PANELS = 4 };

/* Tiles `first` to `last` hold `rows` rows, the others 16: fewer rows of activations cost less. */
static void configure(int first, int last, int64_t rows) {
    struct { uint8_t palette, start, reserved[14]; uint16_t columns[16]; uint8_t rows[16]; } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.columns[i] = 64;
        config.rows[i] = i < first || i > last || rows > 16 ? 16 : (uint8_t)rows;
    }
    _tile_loadconfig(&config);
}

/* int8 weights of one tile as bf16: exact, for 8 bits fit its significand. */
static inline const uint16_t *widen(const int8_t *w, uint16_t *tile) {
    for (int i = 0; i < TILE; i += 32) {
        __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(w + i))));
        __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(w + i + 16))));
        _mm512_storeu_si512(tile + i, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
    return tile;
}

static void put_tile(const Linear *linear, const Target *to, int64_t row, int64_t rows, int64_t panel, const float *c, const float *up) {
    for (int64_t r = 0; r < rows && r < 16; r++)
        finish(linear, to, row + r, panel, load_f32(c + r * LANES), load_f32(up + r * LANES), 1);
}

static void put_tiles(const Linear *linear, const Target *to, int64_t row, int64_t rows, int64_t panel, int panels, float (*c)[256]) {
    if (to->mode == SWIGLU)
        for (int p = 0; p < panels; p += 2) put_tile(linear, to, row, rows, panel + p, c[p], c[p + 1]);
    else
        for (int p = 0; p < panels; p++) put_tile(linear, to, row, rows, panel + p, c[p], c[p]);
}

#define WEIGHT_TILE(p, kt) \
    (int8 ? (const void *)widen((const int8_t *)linear->weights + ((panel + (p)) * tiles + (kt)) * TILE, wide[p]) \
          : (const void *)((const uint16_t *)linear->weights + ((panel + (p)) * tiles + (kt)) * TILE))

/* Up to 16 rows, four panels: every weight is read once. */
static inline __attribute__((always_inline)) void tile_four(
    const Linear *linear, const uint16_t *a, int64_t row, int64_t rows, int64_t panel, int int8, const Target *to) {
    int64_t tiles = linear->k / 32, stride = linear->k * 2;
    const uint16_t *left = a + row * linear->k;
    uint16_t wide[4][TILE] __attribute__((aligned(64)));
    float c[4][256] __attribute__((aligned(64)));
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    for (int64_t kt = 0; kt < tiles; kt++) {
        _tile_loadd(4, left + kt * 32, stride);
        _tile_loadd(5, WEIGHT_TILE(0, kt), 64); _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, WEIGHT_TILE(1, kt), 64); _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(7, WEIGHT_TILE(2, kt), 64); _tile_dpbf16ps(2, 4, 7);
        _tile_loadd(5, WEIGHT_TILE(3, kt), 64); _tile_dpbf16ps(3, 4, 5);
    }
    _tile_stored(0, c[0], 64); _tile_stored(1, c[1], 64); _tile_stored(2, c[2], 64); _tile_stored(3, c[3], 64);
    put_tiles(linear, to, row, rows, panel, 4, c);
}

enum { DEPTH = 4, TOGETHER = 128 };  /* tiles of inputs, and rows, that are computed before the next ones */

/* Weights of the two panels at `next`, `apart` bytes from each other, that come near while others are computed: of each
 * tile the cache lines `from` to `to`. */
typedef struct {
    const char *next;
    int64_t apart;
    int from, to;
} Ahead;

static inline __attribute__((always_inline)) void look_ahead(const Ahead *ahead, int64_t at) {
    for (int line = ahead->from; line < ahead->to; line++) {
        _mm_prefetch(ahead->next + at + 64 * line, _MM_HINT_T0);
        _mm_prefetch(ahead->next + at + 64 * line + ahead->apart, _MM_HINT_T0);
    }
}

/* Up to 32 rows and one or two panels: the tiles of inputs from `begin` to `end`, added to c unless they are the first. */
static inline __attribute__((always_inline)) void tile_block(
    const Linear *linear, const uint16_t *upper, int64_t rows, int64_t panel, int panels, int64_t begin, int64_t end, int int8,
    float (*c)[256], const Ahead *ahead) {
    int64_t tiles = linear->k / 32, stride = linear->k * 2;
    const uint16_t *lower = upper + 16 * linear->k;
    int second = rows > 16;
    uint16_t wide[2][TILE] __attribute__((aligned(64)));
    if (begin) {
        _tile_loadd(0, c[0], 64); _tile_loadd(1, c[1], 64);
        if (second) { _tile_loadd(2, c[2], 64); _tile_loadd(3, c[3], 64); }
    } else {
        _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    }
    for (int64_t kt = begin; kt < end; kt++) {
        look_ahead(ahead, (kt - begin) * (int8 ? TILE : 2 * TILE));
        _tile_loadd(4, upper + kt * 32, stride);
        _tile_loadd(6, WEIGHT_TILE(0, kt), 64); _tile_dpbf16ps(0, 4, 6);
        if (panels > 1) { _tile_loadd(7, WEIGHT_TILE(1, kt), 64); _tile_dpbf16ps(1, 4, 7); }
        if (second) {
            _tile_loadd(5, lower + kt * 32, stride);
            _tile_dpbf16ps(2, 5, 6);
            if (panels > 1) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, c[0], 64); _tile_stored(1, c[1], 64);
    if (second) { _tile_stored(2, c[2], 64); _tile_stored(3, c[3], 64); }
}

/* Up to TOGETHER rows and TILE_PANELS panels, a few tiles of inputs at a time: these activations stay in the nearest cache
 * while all the panels meet them. Read from farther away they would take the place of weights that are on their way. */
static inline __attribute__((always_inline)) void tile_many(
    const Linear *linear, const uint16_t *a, int64_t row, int64_t rows, int64_t from, int64_t end, int int8, const Target *to) {
    int64_t tiles = linear->k / 32, bytes = int8 ? TILE : 2 * TILE;
    int passes = (int)((rows + 31) / 32), lines = (int)bytes / 64;
    float c[TILE_PANELS / 2][TOGETHER / 32][4][256] __attribute__((aligned(64)));
    for (int64_t kt = 0; kt < tiles; kt += DEPTH)
        for (int64_t panel = from; panel < end; panel += 2) {
            int last = panel + 2 >= end;
            const char *next = (const char *)linear->weights + ((last ? from : panel + 2) * tiles + kt + (last ? DEPTH : 0)) * bytes;
            for (int pass = 0; pass < passes; pass++) {
                Ahead ahead = {next, tiles * bytes, lines * pass / passes, lines * (pass + 1) / passes};
                tile_block(
                    linear, a + (row + 32 * pass) * linear->k, rows - 32 * pass, panel, panel + 1 < end ? 2 : 1, kt,
                    kt + DEPTH < tiles ? kt + DEPTH : tiles, int8, c[(panel - from) / 2][pass], &ahead);
            }
        }
    for (int64_t panel = from; panel < end; panel += 2)
        for (int64_t first = 0; first < rows; first += 16)
            put_tiles(linear, to, row + first, rows - first, panel, panel + 1 < end ? 2 : 1,
                      c[(panel - from) / 2][first / 32] + first % 32 / 8);
}

static inline __attribute__((always_inline)) void tile_panels(
    const Linear *linear, const uint16_t *a, int64_t rows, int64_t from, int64_t end, int int8, const Target *to) {
    if (rows <= 16)
        for (; from + TILE_PANELS <= end; from += TILE_PANELS) tile_four(linear, a, 0, rows, from, int8, to);
    for (int64_t row = 0; row < rows && from < end; row += TOGETHER)
        tile_many(linear, a, row, rows - row < TOGETHER ? rows - row : TOGETHER, from, end, int8, to);
}
#endif
