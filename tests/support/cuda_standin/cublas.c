#include <stdlib.h>
int cublasCreate_v2(void **h) {
    *h = malloc(64);
    return 0;
}
int cublasGetMathMode(void *h, int *m) {
    *m = 0;
    return 0;
}
int cublasGetPointerMode_v2(void *h, int *m) {
    *m = 0;
    return 0;
}
int cublasGetVersion_v2(void *h, int *v) {
    *v = 130100;
    return 0;
}
