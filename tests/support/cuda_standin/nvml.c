// A stand-in for NVML: one or more H100s, or what FAKE_KIND says.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef int R;
typedef void *D;
static int n(void) {
    const char *e = getenv("FAKE_GPUS");
    return e ? atoi(e) : 1;
}
static const struct {
    const char *kind, *name;
    int major, minor;
    unsigned long long bytes;
} kinds[] = {
    {"H100", "NVIDIA H100 80GB HBM3", 9, 0, 85520809984ULL},
    {"A100", "NVIDIA A100-SXM4-80GB", 8, 0, 85094825984ULL},
    {"L40S", "NVIDIA L40S", 8, 9, 48305799168ULL},
};
static int kind(void) {
    const char *e = getenv("FAKE_KIND");
    for (int i = 0; e && i < 3; i++)
        if (!strcmp(e, kinds[i].kind)) return i;
    return 0;
}
R nvmlInit(void) { return 0; }
R nvmlInit_v2(void) { return 0; }
R nvmlInitWithFlags(unsigned f) { return 0; }
R nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(R r) { return "fake"; }
R nvmlDeviceGetCount(unsigned *c) {
    *c = n();
    return 0;
}
R nvmlDeviceGetCount_v2(unsigned *c) {
    *c = n();
    return 0;
}
R nvmlDeviceGetHandleByIndex_v2(unsigned i, D *d) {
    if ((int)i >= n()) return 2;
    *d = (D)(size_t)(i + 1);
    return 0;
}
R nvmlDeviceGetHandleByIndex(unsigned i, D *d) { return nvmlDeviceGetHandleByIndex_v2(i, d); }
R nvmlDeviceGetHandleByUUID(const char *u, D *d) {
    *d = (D)1;
    return 0;
}
R nvmlDeviceGetName(D d, char *s, unsigned l) {
    strncpy(s, kinds[kind()].name, l);
    return 0;
}
R nvmlDeviceGetUUID(D d, char *s, unsigned l) {
    snprintf(s, l, "GPU-00000000-0000-0000-0000-00000000000%d", (int)(size_t)d);
    return 0;
}
R nvmlDeviceGetIndex(D d, unsigned *i) {
    *i = (unsigned)(size_t)d - 1;
    return 0;
}
R nvmlDeviceGetCudaComputeCapability(D d, int *a, int *b) {
    *a = kinds[kind()].major;
    *b = kinds[kind()].minor;
    return 0;
}
typedef struct {
    unsigned long long total, free_, used;
} M;
R nvmlDeviceGetMemoryInfo(D d, M *m) {
    m->total = kinds[kind()].bytes;
    m->free_ = m->total - 1520809984ULL;
    m->used = 1520809984ULL;
    return 0;
}
typedef struct {
    unsigned v;
    unsigned long long total, reserved, free_, used;
} M2;
R nvmlDeviceGetMemoryInfo_v2(D d, M2 *m) {
    m->total = kinds[kind()].bytes;
    m->free_ = m->total - 1520809984ULL;
    m->reserved = 0;
    m->used = 1520809984ULL;
    return 0;
}
R nvmlDeviceGetP2PStatus(D a, D b, int i, int *s) {
    *s = 0;
    return 0;
}
R nvmlSystemGetDriverVersion(char *s, unsigned l) {
    strncpy(s, "580.159.04", l);
    return 0;
}
R nvmlSystemGetCudaDriverVersion(int *v) {
    *v = 13000;
    return 0;
}
R nvmlSystemGetCudaDriverVersion_v2(int *v) {
    *v = 13000;
    return 0;
}
R nvmlDeviceGetNumGpuCores(D d, unsigned *c) {
    *c = 16896;
    return 0;
}
R nvmlDeviceGetMigMode(D d, unsigned *a, unsigned *b) {
    *a = 0;
    *b = 0;
    return 0;
}
