/* Where the outputs of a linear layer go. */
#pragma once
#include "model.h"
#include "vector.h"

enum { STORE, ADD, SWIGLU };

typedef struct {
    int mode;
    float *out;       /* STORE, ADD: [rows, stride] */
    void *activated;  /* SWIGLU: bf16 with tiles, else f32 */
    int64_t stride;
} Target;

/* One row, 16 columns of one panel (SWIGLU: of a gate and an up panel). */
static inline void finish(const Linear *linear, const Target *to, int64_t row, int64_t panel, v16 c, v16 up, int amx) {
    int64_t column = panel * LANES;
    if (linear->scales) c *= load_f32(linear->scales + column);
    if (linear->bias) c += load_f32(linear->bias + column);
    if (to->mode == SWIGLU) {
        column = panel / 2 * LANES;
        if (linear->scales) up *= load_f32(linear->scales + (panel + 1) * LANES);
        if (linear->bias) up += load_f32(linear->bias + (panel + 1) * LANES);
        v16 silu = c / (1.0f + vexp(-c)) * up;
        if (amx) store_bf16((uint16_t *)to->activated + row * to->stride + column, silu);
        else store_f32((float *)to->activated + row * to->stride + column, silu);
    } else {
        float *out = to->out + row * to->stride + column;
        store_f32(out, to->mode == ADD ? load_f32(out) + c : c);
    }
}
