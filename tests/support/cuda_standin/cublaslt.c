#include <stdlib.h>
#include <string.h>
typedef struct {
    unsigned long long data[8];
} Algo;
typedef struct {
    Algo algo;
    size_t ws;
    int state;
    float waves;
    int r[4];
} Heur;
size_t cublasLtGetVersion(void) { return 130100; }
int cublasLtCreate(void **h) {
    *h = malloc(64);
    return 0;
}
int cublasLtMatmulDescCreate(void **d, int c, int s) {
    *d = calloc(1, 256);
    return 0;
}
int cublasLtMatrixLayoutCreate(void **d, int t, unsigned long long r, unsigned long long c, long long ld) {
    *d = calloc(1, 256);
    return 0;
}
int cublasLtMatmulPreferenceCreate(void **d) {
    *d = calloc(1, 256);
    return 0;
}
int cublasLtMatmulDescDestroy(void *d) {
    free(d);
    return 0;
}
int cublasLtMatrixLayoutDestroy(void *d) {
    free(d);
    return 0;
}
int cublasLtMatmulPreferenceDestroy(void *d) {
    free(d);
    return 0;
}
int cublasLtMatmulAlgoGetHeuristic(void *l, void *o, void *a, void *b, void *c, void *d, void *p, int n, Heur *h,
                                   int *got) {
    memset(h, 0, sizeof *h);
    *got = 1;
    return 0;
}
