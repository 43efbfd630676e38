/* The little of CUDA's driver library that torch asks for before it launches a kernel. */
#include <stdio.h>

int cuInit(unsigned flags) { return flags != 0; }
int cuDriverGetVersion(int *out) { return *out = 13000, 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  (void)device;
  return *flags = 0, *active = 1, 0;
}
int cuCtxGetCurrent(void **out) { return *out = (void *)8, 0; }
int cuCtxSetCurrent(void *context) { return context == NULL; }
