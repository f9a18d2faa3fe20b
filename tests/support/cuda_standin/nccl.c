#include <unistd.h>
// NCCL between processes of one machine, by files in a folder: a stand-in that moves bytes for broadcasts of two ranks.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct {
    char id[128];
} Id;
typedef struct {
    int n, rank, dev;
    Id id;
    unsigned long seq;
} Comm;
const char *ncclGetErrorString(int e) { return e ? "nccl stand-in error" : "no error"; }
const char *ncclGetLastError(void *c) { return ""; }
int ncclGetVersion(int *v) {
    *v = 22907;
    return 0;
}
int ncclGetUniqueId(Id *i) {
    memset(i, 0, 128);
    snprintf(i->id, 128, "%s/nccl-%d-%lx", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", getpid(),
             (unsigned long)random());
    return 0;
}
static int make(void **c, int n, Id id, int r) {
    Comm *m = calloc(1, sizeof *m);
    m->n = n;
    m->rank = r;
    m->id = id;
    *c = m;
    return 0;
}
int ncclCommInitRank(void **c, int n, Id id, int r) { return make(c, n, id, r); }
int ncclCommInitRankConfig(void **c, int n, Id id, int r, void *cfg) { return make(c, n, id, r); }
int ncclCommInitRankScalable(void **c, int n, int r, int k, Id *id, void *cfg) { return make(c, n, id[0], r); }
int ncclCommGetAsyncError(void *c, int *e) {
    *e = (getenv("FAKE_BROKEN") && access(getenv("FAKE_BROKEN"), 0) == 0) ? 6 : 0;
    return 0;
}
int ncclCommCount(Comm *c, int *n) {
    *n = c->n;
    return 0;
}
int ncclCommUserRank(Comm *c, int *n) {
    *n = c->rank;
    return 0;
}
int ncclCommSplit(void *c, int color, int key, void **o, void *cfg) { return make(o, 1, (Id){{0}}, 0); }
static const int size[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
int ncclBroadcast(const void *s, void *r, size_t n, int t, int root, Comm *c, void *st) {
    size_t b = n * size[t];
    if (s != r && c->n == 1) memmove(r, s, b);
    if (c->n > 1) {
        char p[200], q[220];
        snprintf(p, 200, "%s-%lu", c->id.id, c->seq++);
        snprintf(q, 220, "%s.tmp", p);
        if (c->rank == root) {
            FILE *f = fopen(q, "wb");
            fwrite(s, 1, b, f);
            fclose(f);
            rename(q, p);
        } else {
            for (int i = 0; i < 60000; i++) {
                FILE *f = fopen(p, "rb");
                if (f) {
                    fread(r, 1, b, f);
                    fclose(f);
                    remove(p);
                    return 0;
                }
                usleep(500);
            }
            return 6;
        }
    }
    return 0;
}
int ncclAllReduce(const void *s, void *r, size_t n, int t, int o, Comm *c, void *st) {
    if (s != r) memmove(r, s, n * size[t]);
    return 0;
}
int ncclReduceScatter(const void *s, void *r, size_t n, int t, int o, Comm *c, void *st) {
    if (s != r) memmove(r, (char *)s + c->rank * n * size[t], n * size[t]);
    return 0;
}
int ncclAllGather(const void *s, void *r, size_t n, int t, Comm *c, void *st) {
    for (int i = 0; i < c->n; i++)
        if ((char *)r + i * n * size[t] != s) memmove((char *)r + i * n * size[t], s, n * size[t]);
    return 0;
}
int ncclReduce(const void *s, void *r, size_t n, int t, int o, int root, Comm *c, void *st) {
    if (s != r) memmove(r, s, n * size[t]);
    return 0;
}
int ncclBcast(void *b, size_t n, int t, int root, Comm *c, void *st) { return ncclBroadcast(b, b, n, t, root, c, st); }
