/* A libcuda.so.1 on host memory, so that the real cuda.bindings can be called without a driver.
 *
 * Only what weft/runtime/device/backends calls. Work is done at once, by a hook that Python sets:
 * hook(what, a, b, c, d); while a stream is captured, `what` has 100 added. Node N of a graph gets other
 * parameters: 1000 + N for a launch, 2000 + N for a copy.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t (*Hook)(int64_t, int64_t, int64_t, int64_t, int64_t);
static Hook hook;
static int capturing;
static int64_t nodes; /* of what is captured */
static size_t limit = 1 << 28, taken;

enum { LAUNCH = 1, COPY = 2, CLEAR = 3, BEGIN = 4, REPLAY = 5, PEER = 6 };

void weft_set_hook(Hook given) { hook = given; }
static int tell(int64_t what, int64_t a, int64_t b, int64_t c, int64_t d) {
  nodes = what == BEGIN ? 0 : nodes + 1;
  return (int)hook(what + (capturing ? 100 : 0), a, b, c, d);
}

int f_cuInit(unsigned flags) { return flags ? 1 : 0; }
int f_cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int f_cuDeviceGetCount(int *n) { *n = 2; return 0; }
int f_cuDeviceGet(int *d, int index) { *d = index; return index > 1 ? 101 : 0; }
int f_cuDeviceGetName(char *name, int n, int d) { snprintf(name, n, "Fake libcuda"); return 0; }
/* 13: clock, kHz; 16: multiprocessors; 36: clock of memory; 37: bits of its bus */
int f_cuDeviceGetAttribute(int *v, int what, int d) {
  *v = what == 75 ? 8 : what == 76 ? 0 : what == 13 ? 1410000 : what == 16 ? 108 : what == 36 ? 1215000 : what == 37 ? 5120 : what == 115 ? 1 : -1;
  return *v < 0;
}
int f_cuDeviceTotalMem(size_t *n, int d) { *n = limit; return 0; }
static void *contexts[2];
int f_cuDevicePrimaryCtxRetain(void **c, int d) { *c = contexts[d] = malloc(8); return 0; }
int f_cuCtxSetCurrent(void *c) { return c && (c == contexts[0] || c == contexts[1]) ? 0 : 201; }
int f_cuDeviceCanAccessPeer(int *can, int d, int other) { *can = 1; return d == other ? 101 : 0; }
int f_cuStreamCreate(void **s, unsigned flags) { *s = malloc(8); return flags == 1 ? 0 : 1; }
int f_cuStreamSynchronize(void *s) { return s ? 0 : 1; }
int f_cuStreamWaitEvent(void *s, void *e, unsigned flags) { return s && e && !flags ? 0 : 1; }
int f_cuEventCreate(void **e, unsigned flags) { *e = malloc(8); return flags == 2 || !flags ? 0 : 1; }
int f_cuEventSynchronize(void *e) { return e ? 0 : 1; }
int f_cuEventQuery(void *e) { return e ? 0 : 1; }
int f_cuCtxSynchronize(void) { return 0; }
int f_cuCtxRecordEvent(void *c, void *e) { return e && (c == contexts[0] || c == contexts[1]) ? 0 : 201; }
int f_cuPointerGetAttribute(void *v, int what, uint64_t a) { *(int *)v = 0; return what == 9 && a > 4096 ? 0 : 1; }
int f_cuEventRecord(void *e, void *s) { return e && s ? 0 : 1; }
int f_cuEventDestroy(void *e) { free(e); return 0; }
int f_cuEventElapsedTime(float *ms, void *a, void *b) { *ms = 0.25f; return 0; }
int f_cuDeviceGetDefaultMemPool(void **p, int d) { *p = malloc(8); return 0; }
int f_cuMemPoolSetAttribute(void *p, int what, void *v) { return what == 4 && *(uint64_t *)v == UINT64_MAX ? 0 : 1; }
static int allowed;
int f_cuMemPoolSetAccess(void *p, int *access, size_t n) { /* CUmemAccessDesc: type, id, flags */
  allowed = n == 1 && access[0] == 1 && access[2] == 3;
  return allowed ? 0 : 1;
}
int f_cuMemPoolTrimTo(void *p, size_t n) { return 0; }
int f_cuMemAllocAsync(uint64_t *a, size_t n, void *s) {
  if (taken + n > limit) return 2;
  size_t *room = aligned_alloc(256, (n + 511) / 256 * 256 + 256);
  room[0] = n;
  taken += n;
  *a = (uint64_t)room + 256;
  return 0;
}
int f_cuMemFreeAsync(uint64_t a, void *s) {
  size_t *room = (size_t *)(a - 256);
  taken -= room[0];
  free(room);
  return 0;
}
int f_cuMemHostAlloc(void **a, size_t n, unsigned flags) { *a = malloc(n); return 0; }
int f_cuMemFreeHost(void *a) { free(a); return 0; }
int f_cuMemcpyHtoDAsync(uint64_t t, void *s, size_t n, void *st) { memcpy((void *)t, s, n); return 0; }
int f_cuMemcpyDtoHAsync(void *t, uint64_t s, size_t n, void *st) { memcpy(t, (void *)s, n); return 0; }
int f_cuMemcpyDtoDAsync(uint64_t t, uint64_t s, size_t n, void *st) { return tell(COPY, t, s, n, 0); }
int f_cuMemcpyPeerAsync(uint64_t t, void *to, uint64_t s, void *of, size_t n, void *st) {
  if (to == of || !allowed || (of != contexts[0] && of != contexts[1])) return 1;
  return tell(PEER, t, s, n, 0);
}
int f_cuMemsetD8Async(uint64_t t, unsigned char v, size_t n, void *st) { return tell(CLEAR, t, v, n, 0); }
int f_cuModuleLoadData(void **m, void *image) { *m = strdup(image); return 0; }
int f_cuModuleGetFunction(void **f, void *m, char *name) { *f = m; return strstr(name, "_entry") ? 0 : 500; }
int f_cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                     unsigned shared, void *s, void **params, void **extra) {
  if (gy * gz * by * bz != 1 || shared || extra) return 1;
  return tell(LAUNCH, (int64_t)f, gx, bx, (int64_t)params);
}
int f_cuThreadExchangeStreamCaptureMode(int *mode) {
  static __thread int held;
  int before = held;
  held = *mode;
  *mode = before;
  return 0;
}
int f_cuStreamBeginCapture(void *s, int mode) {
  tell(BEGIN, 0, 0, 0, 0);
  capturing = 1;
  return mode == 1 ? 0 : 1;
}
int f_cuStreamEndCapture(void *s, void **g) { capturing = 0; *g = malloc(8); return 0; }
int f_cuStreamGetCaptureInfo(void *s, int *status, uint64_t *id, void **graph, int64_t **follows, void **edges, size_t *n) {
  *status = capturing;
  if (id) *id = 1;
  if (graph) *graph = 0;
  if (follows) *follows = &nodes;
  if (edges) *edges = 0;
  if (n) *n = nodes > 0;
  return 0;
}
struct launch { /* CUDA_KERNEL_NODE_PARAMS */
  void *func;
  unsigned gx, gy, gz, bx, by, bz, shared;
  void **params, **extra, *kern, *context;
};
int f_cuGraphExecKernelNodeSetParams(void *x, void *node, struct launch *p) {
  if (p->gy * p->gz * p->by * p->bz != 1 || p->shared || p->extra || p->kern || p->context) return 1;
  return tell(1000 + (int64_t)node, (int64_t)p->func, p->gx, p->bx, (int64_t)p->params);
}
struct end { /* of CUDA_MEMCPY3D */
  size_t x, y, z, lod;
  int type;
  void *host;
  uint64_t device;
  void *array, *reserved;
  size_t pitch, height;
};
struct copy {
  struct end from, to;
  size_t width, height, depth;
};
int f_cuGraphExecMemcpyNodeSetParams(void *x, void *node, struct copy *p, void *context) {
  if (p->from.type != 2 || p->to.type != 2 || p->height != 1 || p->depth != 1) return 1;
  if (context != contexts[0] && context != contexts[1]) return 201;
  return tell(2000 + (int64_t)node, p->to.device, p->from.device, p->width, 0);
}
int f_cuGraphInstantiateWithFlags(void **x, void *g, uint64_t flags) { *x = malloc(8); return 0; }
int f_cuGraphDestroy(void *g) { free(g); return 0; }
int f_cuGraphExecDestroy(void *x) { free(x); return 0; }
int f_cuGraphLaunch(void *x, void *s) { return tell(REPLAY, 0, 0, 0, 0); }
int f_cuGetErrorString(int status, const char **text) { *text = "as the fake says"; return 0; }
int f_cuGetErrorName(int status, const char **text) { *text = "FAKE"; return 0; }

static int missing(void) { return 34; } /* CUDA_ERROR_STUB_LIBRARY */

int cuGetProcAddress_v2(const char *name, void **f, int version, uint64_t flags, int *found) {
  char own[128];
  snprintf(own, sizeof own, "f_%s", name);
  *f = dlsym(RTLD_DEFAULT, own);
  if (!*f) *f = (void *)missing;
  if (found) *found = 0;
  return 0;
}
