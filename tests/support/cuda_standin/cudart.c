// A CUDA runtime whose device is this process's memory, and whose kernels do nothing.
#include <driver_types.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static __thread int device = 0;
static __thread int last = 0;
static pid_t began = 0;
static int gpus(void) {
    const char *e = getenv("FAKE_GPUS");
    return e ? atoi(e) : 1;
}
static int start(void) {
    if (!began) began = getpid();
    if (began != getpid()) {
        last = 3;
        return 3;
    }
    return 0;
} // 3: initialization error, as in a forked process
#define UP                                                                                                             \
    {                                                                                                                  \
        int r = start();                                                                                               \
        if (r) return r;                                                                                               \
    }
int cudaGetDeviceCount(int *n) {
    UP;
    *n = gpus();
    return 0;
}
int cudaGetDevice(int *d) {
    UP;
    *d = device;
    return 0;
}
int cudaSetDevice(int d) {
    UP;
    if (d >= gpus()) {
        last = 101;
        return 101;
    }
    device = d;
    return 0;
}
int cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
    UP;
    memset(p, 0, sizeof *p);
    strcpy(p->name, "NVIDIA H100 80GB HBM3");
    p->totalGlobalMem = 85520809984ULL;
    p->major = 9;
    p->minor = 0;
    p->multiProcessorCount = 132;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->sharedMemPerBlock = 49152;
    p->sharedMemPerBlockOptin = 232448;
    p->sharedMemPerMultiprocessor = 233472;
    p->regsPerBlock = 65536;
    p->regsPerMultiprocessor = 65536;
    p->l2CacheSize = 50 << 20;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = 65535;
    p->maxGridSize[2] = 65535;
    p->maxThreadsDim[0] = 1024;
    p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->unifiedAddressing = 1;
    p->concurrentKernels = 1;
    p->textureAlignment = 512;
    return 0;
}
int cudaDeviceGetAttribute(int *v, int a, int d) {
    UP;
    switch (a) {
    case 75:
        *v = 9;
        break;
    case 76:
        *v = 0;
        break;
    case 16:
        *v = 132;
        break;
    case 97:
        *v = 232448;
        break;
    case 81:
        *v = 233472;
        break;
    case 1:
        *v = 1024;
        break;
    case 39:
        *v = 2048;
        break;
    case 10:
        *v = 32;
        break;
    case 38:
        *v = 50 << 20;
        break;
    default:
        *v = 1;
    }
    return 0;
}
int cudaDeviceGetPCIBusId(char *s, int l, int d) {
    snprintf(s, l, "0000:%02x:00.0", d);
    return 0;
}
int cudaDeviceGetStreamPriorityRange(int *a, int *b) {
    if (a) *a = 0;
    if (b) *b = -5;
    return 0;
}
int cudaDeviceCanAccessPeer(int *c, int a, int b) {
    *c = 1;
    return 0;
}
int cudaDriverGetVersion(int *v) {
    *v = 13000;
    return 0;
}
int cudaRuntimeGetVersion(int *v) {
    *v = 13000;
    return 0;
}
// Caches for keys and values are larger than the machine, and nobody touches them: pages come with the first touch.
#define LARGE (1ul << 30)
static struct {
    void *at;
    size_t n;
} large[64];
static int get_large(void **p, size_t n) {
    *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (int i = 0; *p != MAP_FAILED && i < 64; i++)
        if (!large[i].at) {
            large[i].at = *p;
            large[i].n = n;
            return 0;
        }
    last = 2;
    return 2;
}
static int give_back(void *p) {
    for (int i = 0; p && i < 64; i++)
        if (large[i].at == p) {
            large[i].at = 0;
            return munmap(p, large[i].n);
        }
    free(p);
    return 0;
}
static void fill(void *p, int v, size_t n) {
    if (v || n < LARGE || ((uintptr_t)p & 4095) || madvise(p, n & ~4095ul, MADV_DONTNEED)) {
        memset(p, v, n);
        return;
    }
    memset((char *)p + (n & ~4095ul), 0, n & 4095);
}
static int get(void **p, size_t n) {
    UP;
    if (n >= LARGE) return get_large(p, n);
    if (posix_memalign(p, 512, n ? n : 512)) {
        last = 2;
        return 2;
    }
    memset(*p, 0, n);
    return 0;
}
// Host memory that is pinned: those who ask what a pointer is are told.
static struct {
    char *volatile at;
    size_t n;
} pinned[1024];
static int pin(void *p, size_t n) {
    for (int i = 0; i < 1024; i++)
        if (__sync_bool_compare_and_swap(&pinned[i].at, 0, p)) {
            pinned[i].n = n;
            return 0;
        }
    return last = 2;
}
static int unpin(void *p) {
    for (int i = 0; i < 1024; i++) __sync_bool_compare_and_swap(&pinned[i].at, p, 0);
    return 0;
}
static int is_pinned(const char *p) {
    for (int i = 0; i < 1024; i++)
        if (pinned[i].at && p >= pinned[i].at && p < pinned[i].at + pinned[i].n) return 1;
    return 0;
}
int cudaHostRegister(void *p, size_t n, unsigned f) { return pin(p, n); }
int cudaHostUnregister(void *p) { return unpin(p); }
int cudaMalloc(void **p, size_t n) { return get(p, n); }
int cudaMallocAsync(void **p, size_t n, void *s) { return get(p, n); }
int cudaHostAlloc(void **p, size_t n, unsigned f) { return get(p, n) || pin(*p, n); }
int cudaFree(void *p) {
    return give_back(p);
}
int cudaFreeAsync(void *p, void *s) {
    return give_back(p);
}
int cudaFreeHost(void *p) {
    unpin(p);
    return give_back(p);
}
int cudaMemGetInfo(size_t *f, size_t *t) {
    UP;
    *f = 84000000000ULL;
    *t = 85520809984ULL;
    return 0;
}
int cudaMemcpy(void *d, const void *s, size_t n, int k) {
    memmove(d, s, n);
    return 0;
}
int cudaMemcpyAsync(void *d, const void *s, size_t n, int k, void *st) {
    UP;
    memmove(d, s, n);
    return 0;
}
int cudaMemcpyPeerAsync(void *d, int a, const void *s, int b, size_t n, void *st) {
    memmove(d, s, n);
    return 0;
}
int cudaMemcpy2DAsync(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, int k, void *st) {
    for (size_t i = 0; i < h; i++)
        memmove((char *)d + i * dp, (const char *)s + i * sp, w);
    return 0;
}
int cudaMemset(void *d, int v, size_t n) {
    fill(d, v, n);
    return 0;
}
int cudaMemsetAsync(void *d, int v, size_t n, void *s) {
    UP;
    fill(d, v, n);
    return 0;
}
int cudaHostGetDevicePointer(void **d, void *h, unsigned f) {
    *d = h;
    return 0;
}
int cudaStreamCreate(void **s) {
    UP;
    *s = malloc(8);
    return 0;
}
int cudaStreamCreateWithFlags(void **s, unsigned f) {
    UP;
    *s = malloc(8);
    return 0;
}
int cudaStreamCreateWithPriority(void **s, unsigned f, int p) {
    UP;
    *s = malloc(8);
    return 0;
}
int cudaStreamGetPriority(void *s, int *p) {
    *p = 0;
    return 0;
}
static void *caught = 0;
static unsigned long long catch_id = 0; // The stream that is captured as a graph, where one is.
int cudaStreamBeginCapture(void *s, int m) {
    UP;
    caught = s;
    catch_id++;
    return 0;
}
int cudaStreamEndCapture(void *s, void **g) {
    caught = 0;
    *g = malloc(8);
    return 0;
}
int cudaStreamIsCapturing(void *s, int *c) {
    *c = s && s == caught;
    return 0;
}
int cudaGraphInstantiateWithFlags(void **x, void *g, unsigned long long f) {
    *x = malloc(8);
    return 0;
}
int cudaGraphGetNodes(void *g, void *n, size_t *c) {
    if (c) *c = 0;
    return 0;
}
int cudaStreamGetCaptureInfo(void *s, int *c, unsigned long long *id, void **g, void *d, void *e, size_t *n) {
    *c = s && s == caught;
    if (id) *id = catch_id;
    if (g) *g = 0;
    if (n) *n = 0;
    return 0;
}
int cudaThreadExchangeStreamCaptureMode(int *m) { return 0; }
int cudaEventCreate(void **e) {
    UP;
    *e = malloc(8);
    return 0;
}
int cudaEventCreateWithFlags(void **e, unsigned f) {
    UP;
    *e = malloc(8);
    return 0;
}
int cudaEventElapsedTime(float *t, void *a, void *b) {
    *t = 0.001f;
    return 0;
}
const char *cudaGetErrorString(int e) {
    return e == 0   ? "no error"
           : e == 2 ? "out of memory"
           : e == 3 ? "initialization error"
                    : "some error of the stand-in";
}
const char *cudaGetErrorName(int e) { return e == 0 ? "cudaSuccess" : "cudaErrorOfTheStandIn"; }
int cudaGetLastError(void) {
    int e = last;
    last = 0;
    return e;
}
int cudaPeekAtLastError(void) { return last; }
int cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
    memset(a, 0, sizeof *a);
    a->type = is_pinned(p) ? 1 : 2;
    a->device = device;
    a->devicePointer = (void *)p;
    a->hostPointer = (void *)p;
    return 0;
}
int cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) {
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024;
    a->numRegs = 32;
    a->binaryVersion = 90;
    a->ptxVersion = 90;
    return 0;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int b, size_t s) {
    *n = 2;
    return 0;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int b, size_t s, unsigned fl) {
    *n = 2;
    return 0;
}
static int drv_ok(void) { return 0; }
static int drv_state(int d, unsigned *f, int *a) {
    if (f) *f = 0;
    if (a) *a = 1;
    return 0;
}
static int drv_str(int e, const char **s) {
    *s = "stand-in";
    return 0;
}
int cudaGetDriverEntryPointByVersion(const char *n, void **p, unsigned v, unsigned long long f, int *st) {
    *p = strstr(n, "PrimaryCtxGetState") ? (void *)drv_state
         : strstr(n, "GetErrorString")   ? (void *)drv_str
                                         : (void *)drv_ok;
    if (getenv("FAKE_TRACE")) fprintf(stderr, "[driver entry] %s\n", n);
    if (st) *st = 0;
    return 0;
}
int cudaDeviceGetDefaultMemPool(void **p, int d) {
    static int x;
    *p = &x;
    return 0;
}
int cudaGetSymbolAddress(void **p, const void *s) {
    static char m[65536];
    *p = m;
    return 0;
}
int cudaIpcGetMemHandle(void *h, void *p) {
    memset(h, 0, 64);
    return 0;
}
int cudaIpcGetEventHandle(void *h, void *p) {
    memset(h, 0, 64);
    return 0;
}
void **__cudaRegisterFatBinary(void *f) {
    static void *h[4];
    return h;
}
void __cudaRegisterFatBinaryEnd(void **h) {}
void __cudaUnregisterFatBinary(void **h) {}
void __cudaRegisterFunction(void **h, const char *f, char *df, const char *n, int tl, void *t, void *b, void *bd,
                            void *gd, int *w) {}
void __cudaRegisterVar(void **h, char *v, char *da, const char *dn, int e, size_t s, int c, int g) {}
int __cudaPushCallConfiguration(void) { return 0; }
int __cudaPopCallConfiguration(void *a, void *b, size_t *c, void *d) {
    if (c) *c = 0;
    return 0;
}
int __cudaGetKernel(void **k, const void *f) {
    *k = (void *)f;
    return 0;
}
int cudaLaunchKernel(const void *f, ...) {
    UP;
    return 0;
}
int __cudaLaunchKernel(const void *f, ...) {
    UP;
    return 0;
}
int cudaLaunchKernelExC(const void *c, const void *f, void **a) {
    UP;
    return 0;
}
int cudaLaunchCooperativeKernel(const void *f, ...) {
    UP;
    return 0;
}

int cudaEventQuery(void *e) {
    if (getenv("FAKE_HANG") && access(getenv("FAKE_HANG"), F_OK) == 0) {
        last = 600;
        return 600;
    }
    return 0;
}
