/* Threads that share the work of a forward: whoever is free claims the next piece, so that a thread which the system has
 * put aside holds up one piece and not its half of the work; and a barrier that spins briefly, then lets others run. */
#pragma once
#include <sched.h>
#include <stdint.h>

enum { SPINS = 4096 };

typedef struct { int64_t next; char alone[56]; } Counter;  /* alone in its cache line */

typedef struct {
    int64_t threads;
    int64_t arrived __attribute__((aligned(64)));
    int64_t rounds __attribute__((aligned(64)));
    Counter *counters;  /* one per phase of the forward, zero at its start */
} Team;

typedef struct {
    Team *team;
    int64_t phase, thread;
} Member;

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Everyone waits for everyone; what was written before is seen after. The next pieces are those of the next phase. */
static void meet(Member *me) {
    Team *team = me->team;
    me->phase++;
    if (team->threads == 1) return;
    int64_t round = __atomic_load_n(&team->rounds, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&team->arrived, 1, __ATOMIC_ACQ_REL) == team->threads) {
        team->arrived = 0;
        __atomic_store_n(&team->rounds, round + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int64_t spins = 0; __atomic_load_n(&team->rounds, __ATOMIC_ACQUIRE) == round; spins++) {
        if (spins < SPINS) relax();
        else sched_yield();
    }
}

/* The first of the next `size` pieces of this phase; at or beyond the number of pieces: none is left. */
static inline int64_t claim(Member *me, int64_t size) {
    return __atomic_fetch_add(&me->team->counters[me->phase].next, size, __ATOMIC_RELAXED);
}

static inline int64_t claimed(const Member *me) {
    return __atomic_load_n(&me->team->counters[me->phase].next, __ATOMIC_RELAXED);
}

#define EACH(piece, pieces) for (int64_t piece; (piece = claim(me, 1)) < (pieces);)
