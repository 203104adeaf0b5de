/* Laws and what is asked of them, row by row: one row is one node's logits. The arithmetic of specdec/lm/law.py and
 * draw.py, which define it; wherever rounding could make another answer than theirs, the row is handed back UNDECIDED.
 * No row's answer depends on the others. */
#include <omp.h>
#include "law.h"

/* One node: its logits, its parameters, what is asked. All fields 8 bytes; specdec/lm/native/law.py packs them. */
typedef struct {
    const float *logits;
    double temperature, top_p, min_p, u; /* temperature 0: greedy */
    uint64_t key;
    int64_t top_k, edits, edits_end, looks, looks_end, draw, likeliest, confidence;
} Row;

/* p: the drawn token's, or with `confidence` its probability in the softmax of the raw logits. */
typedef struct {
    int64_t status, drawn, likeliest;
    double p, tail;
} Answer;

typedef struct {
    int64_t vocab, likeliest;
    const int64_t *edit_ids;
    const double *edit_bias, *edit_repetition, *edit_penalty; /* specdec/lm/edits.py */
    const uint32_t *look_ids;
    double *look_p;
    uint32_t *likeliest_ids;
    double *likeliest_p;
} Shared;

enum { OK, BAD, EMPTY, UNDECIDED };
enum { NOTHING, RACE, OUTSIDE };

static int64_t greedy(const Row *row, const Shared *all, Law *law, Answer *out) {
    int64_t y = 0;
    if (row->edits < row->edits_end) while (law->w[y] != law->best) y++;
    else y = first_equal(row->logits, all->vocab, (float)law->best);
    out->drawn = y, out->p = 1.0;
    if (row->confidence) {
        double sum = 0, top = law->raw_best;
        d8 sums = {};
        int64_t v = 0;
        for (; v + 8 <= all->vocab; v += 8) sums += exp8(wide(row->logits + v) - top);
        for (; v < all->vocab; v++) sum += exp1(row->logits[v] - top);
        out->p = exp1(row->logits[y] - top) / (sum + sum8(sums));
    }
    law->ids[0] = (uint32_t)y, law->p[0] = 1.0;
    law->m = 1, law->dense = 0, law->mass = 1.0;
    return OK;
}

/* Scores of the row into law->w where they are not simply the logits; the largest of them. */
static int64_t scores(const Row *row, const Shared *all, Law *law) {
    law->raw_best = largest_logit(row->logits, all->vocab);
    if (law->raw_best != law->raw_best || law->raw_best == INFINITY) return BAD;
    if (law->raw_best == -INFINITY) return EMPTY;
    law->best = law->raw_best;
    if (row->edits == row->edits_end && !row->top_k) return OK;
    widen(law->w, row->logits, all->vocab);
    if (row->edits == row->edits_end) return OK;
    for (int64_t e = row->edits; e < row->edits_end; e++) {
        double *score = law->w + all->edit_ids[e], s = *score + all->edit_bias[e], r = all->edit_repetition[e];
        *score = s > 0 ? s / r : s * r;
    }
    for (int64_t e = row->edits; e < row->edits_end; e++) { /* a loop of its own: not to be fused with the product */
        double *score = law->w + all->edit_ids[e], penalty = all->edit_penalty[e];
        *score = penalty == INFINITY ? -INFINITY : *score - penalty;
        if (*score != *score || *score == INFINITY) return BAD;
    }
    law->best = largest(law->w, all->vocab);
    return law->best == -INFINITY ? EMPTY : OK;
}

static int64_t sampled(const Row *row, const Shared *all, Law *law) {
    int64_t n = all->vocab;
    int edited = row->edits < row->edits_end;
    double t = row->temperature, best = law->best / t, sum;
    if (row->top_k) {
        narrow_to_largest(law, row->top_k);
        weigh(law->p, law->p, 0, law->m, t, best);
        sum = running_sum(law->p, law->m);
    } else {
        weigh(law->w, law->w, edited ? 0 : row->logits, n, t, best);
        law->m = n, law->dense = 1;
        sum = lane_sum(law->w, n);
    }
    if (row->top_p < 1.0) {
        /* What weighs less than this each weighs less than half of what may be cut, all together. */
        if (law->dense) narrow(law, (1.0 - row->top_p) * sum / (2.0 * (double)n));
        double rounding = (double)(n + 64) * 2.3e-16 * sum;
        if (!keep_top(law, 0, row->top_p * sum, rounding)) return UNDECIDED;
    }
    if (row->min_p > 0.0) {
        if (law->dense) narrow(law, row->min_p * (1 - 1e-12));
        int64_t m = 0;
        for (int64_t i = 0; i < law->m; i++) {
            double w = law->p[i];
            if (w != 1.0 && fabs(w - row->min_p) <= 1e-12 * row->min_p) return UNDECIDED;
            if (w >= row->min_p) law->ids[m] = law->ids[i], law->p[m++] = w;
        }
        law->m = m;
    }
    law->mass = law->dense ? sum : running_sum(law->p, law->m);
    return OK;
}

/* Weight of one token; its place is put in *at, -1 where the law has none. */
static double weight(const Law *law, uint32_t id, int64_t *at) {
    *at = -1;
    if (law->dense) {
        if (id < law->m) *at = id;
        return *at < 0 ? 0.0 : law->w[id];
    }
    int64_t low = 0, high = law->m;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (law->ids[middle] < id) low = middle + 1;
        else high = middle;
    }
    if (low < law->m && law->ids[low] == id) *at = low;
    return *at < 0 ? 0.0 : law->p[low];
}

/* argmin e / w. e = -log(1 - W) >= W: a token with W > best * w cannot win, and almost none is left. */
static int64_t race(const Law *law, uint64_t key, Answer *out) {
    const double *w = law->dense ? law->w : law->p;
    double best = INFINITY, second = INFINITY;
    int64_t winner = -1;
    for (int64_t begin = 0; begin < law->m; begin += 32) {
        int64_t end = begin + 32 <= law->m ? begin + 32 : law->m;
        if (end - begin == 32 && best < INFINITY) {
            l8 hits = {};
            double reach = best * (1 + 1e-9);
            for (int64_t i = begin; i < end; i += 8)
                hits |= uniform8(key, law->dense ? counting(i) : places(law->ids + i)) <= *(const d8u *)(w + i) * reach;
            if (!any(hits)) continue;
        }
        for (int64_t i = begin; i < end; i++) {
            double first = uniform1(key, law->dense ? (uint64_t)i : law->ids[i]);
            if (w[i] == 0.0 || first > w[i] * best * (1 + 1e-9)) continue;
            double time = -log1p(-first) / w[i];
            if (time < best) second = best, best = time, winner = i;
            else if (time < second) second = time;
        }
    }
    if (winner < 0 || second <= best * (1 + 1e-12)) return UNDECIDED;
    out->drawn = law->dense ? winner : law->ids[winner];
    out->p = w[winner] / law->mass;
    return OK;
}

/* The running sum of what is outside the support, inverted at u. The support's weights are already 0. */
static int64_t outside(const Law *law, double u, Answer *out) {
    enum { BLOCK = 512 };
    const double *w = law->dense ? law->w : law->p;
    double total = 0, sum = 0;
    for (int64_t i = 0; i < law->m; i += BLOCK) total += lane_sum(w + i, law->m - i < BLOCK ? law->m - i : BLOCK);
    out->tail = total / law->mass;
    if (total == 0) return OK;
    double target = u * total, rounding = (double)(law->m + 64) * 2.3e-16 * total;
    for (int64_t i = 0; i < law->m; i += BLOCK) {
        int64_t end = law->m - i < BLOCK ? law->m : i + BLOCK;
        double after = sum + lane_sum(w + i, end - i);
        if (after <= target && fabs(after - target) > rounding) {
            sum = after;
            continue;
        }
        for (int64_t j = i; j < end; j++) {
            double before = sum;
            sum += w[j];
            if (w[j] == 0.0) continue;
            if (fabs(sum - target) <= rounding || (before > 0 && fabs(before - target) <= rounding)) return UNDECIDED;
            if (sum > target) {
                out->drawn = law->dense ? j : law->ids[j];
                return OK;
            }
        }
    }
    return UNDECIDED;
}

static int64_t answer(const Row *row, const Shared *all, int64_t place, Law *law, Answer *out) {
    int64_t status = scores(row, all, law);
    if (status != OK) return status;
    status = row->temperature == 0 ? greedy(row, all, law, out) : sampled(row, all, law);
    if (status != OK) return status;
    if (row->draw == RACE && row->temperature > 0) status = race(law, row->key, out);
    if (status != OK) return status;
    for (int64_t i = row->looks; i < row->looks_end; i++) {
        int64_t at;
        all->look_p[i] = weight(law, all->look_ids[i], &at) / law->mass;
    }
    if (row->draw == OUTSIDE) {
        for (int64_t i = row->looks; i < row->looks_end; i++) {
            int64_t at;
            weight(law, all->look_ids[i], &at);
            if (at >= 0) (law->dense ? law->w : law->p)[at] = 0.0;
        }
        status = outside(law, row->u, out);
    }
    if (row->likeliest) {
        narrow_to_largest(law, all->likeliest);
        out->likeliest = law->m;
        for (int64_t i = 0; i < law->m; i++) {
            all->likeliest_ids[place * all->likeliest + i] = law->ids[i];
            all->likeliest_p[place * all->likeliest + i] = law->p[i] / law->mass;
        }
    }
    return status;
}

void specdec_laws(const Row *rows, Answer *answers, int64_t n, const Shared *all, int64_t threads) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads < n ? threads : n)
    for (int64_t i = 0; i < n; i++) {
        Law *law = scratch(all->vocab);
        answers[i].status = law ? answer(rows + i, all, i, law, answers + i) : UNDECIDED;
    }
}
