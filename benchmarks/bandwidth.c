// Raw read bandwidth of the memory: sums a buffer far larger than the caches, whose pages are huge where the system
// gives them. usage: bandwidth MEBIBYTES THREADS REPEATS; prints one line per variant: streams per thread, bytes/s.

#define _GNU_SOURCE
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef uint64_t Wide __attribute__((vector_size(64), may_alias)); // one 512-bit load where the processor has them

enum { CHUNK = 512, LINES = CHUNK / 64, PAGE = 2 << 20 };

// A thread reads its share as `streams` runs side by side, a chunk of each in turn: several pages are open at once.
static uint64_t read_streams(const char *start, size_t bytes, int streams) {
  size_t run = bytes / streams / CHUNK * CHUNK;
  Wide sum[LINES];
  memset(sum, 0, sizeof sum);
  for (size_t at = 0; at < run; at += CHUNK)
    for (int s = 0; s < streams; s++) {
      const Wide *from = (const Wide *)(start + s * run + at);
      for (int i = 0; i < LINES; i++) sum[i] += from[i];
    }
  uint64_t total = 0;
  for (int i = 0; i < LINES; i++)
    for (int j = 0; j < 8; j++) total += sum[i][j];
  return total;
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  size_t bytes = (size_t)atol(argv[1]) << 20;
  int threads = atoi(argv[2]), repeats = atoi(argv[3]);
  size_t share = bytes / threads / PAGE * PAGE;
  char *buffer = aligned_alloc(PAGE, bytes);
  if (!buffer || !share) return 1;
  madvise(buffer, bytes, MADV_HUGEPAGE);
  omp_set_num_threads(threads);
#pragma omp parallel
  memset(buffer + omp_get_thread_num() * share, 1, share);

  volatile uint64_t sink = 0; // what is read must be used, or the compiler leaves the reading out
  for (int streams = 1; streams <= 16; streams *= 2) {
    double best = 0;
    for (int r = 0; r < repeats; r++) {
      uint64_t sum = 0;
      double begun = omp_get_wtime();
#pragma omp parallel reduction(+ : sum)
      sum += read_streams(buffer + omp_get_thread_num() * share, share, streams);
      double seconds = omp_get_wtime() - begun;
      sink += sum;
      double read = (double)(share / streams / CHUNK * CHUNK) * streams * threads;
      if (read / seconds > best) best = read / seconds;
    }
    printf("%d %.0f\n", streams, best);
  }
  return sink == 42;
}
