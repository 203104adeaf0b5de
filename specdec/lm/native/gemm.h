/* Linear layers over packed weights. Each output is a sum over the inputs in one fixed order, whatever the number of rows:
 * a row's result does not depend on its batch. */
#pragma once
#include "team.h"
#include "gemm_tiles.h"
#include "gemm_vectors.h"

enum { CLAIMED = 4 };  /* panels a thread takes at a time */
#ifdef __AMX_BF16__
_Static_assert(CLAIMED <= TILE_PANELS, "tile_many has room for the sums of so many panels");
#endif

/* All panels, by whoever is free. Gate and up panels stay together. */
static void gemm(const Model *model, const Linear *linear, const void *a, int64_t rows, const Target *to, Member *me) {
    int64_t panels = linear->n / LANES;
#ifdef __AMX_BF16__
    if (model->amx && rows) configure(0, 4, rows);  /* tile 5 holds activations only where there are more than 16 rows */
#endif
    for (int64_t from; rows;) {
        /* Smaller pieces at the end, so that all come to it together. */
        int64_t size = claimed(me) + CLAIMED * me->team->threads < panels ? CLAIMED : 2;
        if ((from = claim(me, size)) >= panels) break;
        int64_t end = from + size < panels ? from + size : panels;
#ifdef __AMX_BF16__
        if (model->amx) {
            if (model->weights == WEIGHTS_INT8) tile_panels(linear, a, rows, from, end, 1, to);
            else tile_panels(linear, a, rows, from, end, 0, to);
            continue;
        }
#endif
        gemm_vector(linear, a, rows, from, end, (int)model->weights, to);
    }
    meet(me);
}
