/* CUDA's runtime library over host memory: enough of it for torch's CUDA build to run without a GPU.
 *
 * - A device's memory is a region of the address space that nobody may touch (PROT_NONE): the host
 *   that reads it crashes, as on a machine with a GPU. The same memory is mapped a second time, where
 *   copies and kernels read and write it (fake_host_address).
 * - A stream is a queue and a thread that works on it, with random delays. So work that nobody
 *   waited for is still to be done when its result is read, or when its input is overwritten.
 * - Kernels are Python callables (fake_enqueue): torch's own are never launched.
 *
 * Variables: FAKE_GPU_COUNT (1), FAKE_GPU_MEMORY (bytes a device), FAKE_GPU_DELAY (the longest pause
 * before an item, microseconds; 0: none).
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#define MAX_DEVICES 8
#define ALIGNMENT 512
#define SHIFT (1ull << 47) /* beyond all addresses of a process */

typedef struct Block {
  struct Block *next;
  size_t offset, size;
} Block;

typedef struct Stream Stream;

typedef struct {
  char *device, *host; /* the two mappings */
  size_t size, used;
  Block *blocks; /* by offset */
  Stream *stream;
} Device;

typedef struct Range { /* host memory that devices may read */
  struct Range *next;
  char *start;
  size_t size;
  bool is_registered; /* by cudaHostRegister, else allocated here */
} Range;

typedef struct {
  int refs, device;
  uint64_t recorded, done; /* how often */
  double time;
  struct Graph *graph; /* recorded while a graph was captured */
} Event;

typedef struct Item {
  struct Item *next;
  enum { COPY, SET, RECORD, WAIT, CALL, HOST, RELEASE } kind;
  void *to;
  const void *from;
  size_t size;
  int value;
  void *staged; /* freed with the item */
  Event *event;
  uint64_t version;
  long call;
  cudaHostFn_t function;
} Item;

typedef struct Graph {
  Item *items, **last;
} Graph;

struct Stream {
  int device;
  unsigned long long id;
  Item *first, **last;
  uint64_t enqueued, done;
  Graph *capture;
  Stream *next;
  bool has_thread;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Device devices[MAX_DEVICES];
static int num_devices = 1;
static long delay;
static Range *ranges;
static Stream *streams;
static unsigned long long num_streams;
static void (*runner)(long);
static int failed; /* of a kernel: what every later call returns */
static __thread int current;
static __thread int last_error;
static long waits, pageable, changes;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

static size_t number_of(const char *name, size_t otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

/* CUDA_VISIBLE_DEVICES: how many numbers or UUIDs it lists, up to the first that is none. */
static int visible(int count) {
  const char *text = getenv("CUDA_VISIBLE_DEVICES");
  if (!text) return count;
  int seen = 0;
  while (*text) {
    char *end;
    long index = strtol(text, &end, 10);
    if (strncmp(text, "GPU-", 4) && (end == text || index < 0 || index >= count)) break;
    seen++;
    text = strchr(text, ',');
    if (!text) break;
    text++;
  }
  return seen;
}

__attribute__((constructor)) static void start(void) {
  num_devices = visible((int)number_of("FAKE_GPU_COUNT", 1));
  delay = (long)number_of("FAKE_GPU_DELAY", 0);
  for (int i = 0; i < num_devices; i++) devices[i].size = number_of("FAKE_GPU_MEMORY", 4ull << 30);
}

static void *must(void *pointer) {
  if (pointer == MAP_FAILED || pointer == NULL) {
    perror("fake GPU");
    abort();
  }
  return pointer;
}

/* Map a device's memory at its first use. */
static Device *opened(int index) {
  Device *device = &devices[index];
  if (device->device == NULL) {
    int file = memfd_create("fake_gpu", 0);
    if (file < 0 || ftruncate(file, (off_t)device->size)) must(NULL);
    device->host = must(mmap(NULL, device->size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    device->device = must(mmap(NULL, device->size, PROT_NONE, MAP_SHARED, file, 0));
    close(file);
  }
  return device;
}

static Device *device_at(const void *address) {
  for (int i = 0; i < num_devices; i++) {
    char *start = devices[i].device;
    if (start && (char *)address >= start && (char *)address < start + devices[i].size)
      return &devices[i];
  }
  return NULL;
}

static Range *range_at(const void *address) {
  for (Range *range = ranges; range; range = range->next)
    if ((char *)address >= range->start && (char *)address < range->start + range->size)
      return range;
  return NULL;
}

/* Devices know memory that was registered under other addresses than the host does. */
static size_t shift_of(const Range *range) { return range->is_registered ? SHIFT : 0; }

/* Where the host finds what is at an address. */
void *fake_host_address(const void *address) {
  Device *device = device_at(address);
  if (device) return device->host + ((char *)address - device->device);
  return (uintptr_t)address >= SHIFT ? (char *)address - SHIFT : (void *)address;
}

/* The live ranges that a device may address: start, size, and what to add for the host's address.
 * Returns how many there are; at most `room` are written. */
long fake_ranges(uint64_t *out, long room) {
  long n = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < num_devices; i++)
    for (Block *block = devices[i].blocks; block; block = block->next, n++)
      if (n < room) {
        out[3 * n] = (uint64_t)devices[i].device + block->offset;
        out[3 * n + 1] = block->size;
        out[3 * n + 2] = (uint64_t)devices[i].host - (uint64_t)devices[i].device;
      }
  for (Range *range = ranges; range; range = range->next, n++)
    if (n < room) {
      out[3 * n] = (uint64_t)range->start + shift_of(range);
      out[3 * n + 1] = range->size;
      out[3 * n + 2] = -shift_of(range);
    }
  pthread_mutex_unlock(&lock);
  return n;
}

void fake_set_runner(void (*function)(long)) { runner = function; }
void fake_fail(int code) { failed = code; }
long fake_changes(void) { return changes; } /* how often the ranges have changed */
long fake_waits(void) { return waits; }
long fake_pageable(void) { return pageable; }

static cudaError_t result(cudaError_t code) {
  if (code == cudaSuccess && failed) code = failed;
  if (code != cudaSuccess && code != cudaErrorNotReady) last_error = code;
  return code;
}

/* ---- streams ---- */

static void drop_event(Event *event) {
  if (--event->refs == 0) free(event);
}

static void finish(Item *item) { /* with the lock */
  if (item->kind == RECORD) {
    if (item->version > item->event->done) item->event->done = item->version;
    item->event->time = now();
    drop_event(item->event);
  } else if (item->kind == WAIT) {
    drop_event(item->event);
  }
  free(item->staged);
  free(item);
}

static void compute(Item *item) {
  if (item->kind == COPY) memmove(item->to, item->from, item->size);
  if (item->kind == SET) memset(item->to, item->value, item->size);
  if (item->kind == CALL && runner) runner(item->call);
  if (item->kind == HOST) item->function((void *)item->from);
}

static void *work(void *given) {
  Stream *stream = given;
  unsigned seed = (unsigned)stream->id * 7919u + 17u;
  current = stream->device;
  pthread_mutex_lock(&lock);
  for (;;) {
    while (!stream->first) pthread_cond_wait(&changed, &lock);
    Item *item = stream->first;
    while (item->kind == WAIT && item->event->done < item->version)
      pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    if (delay && item->kind <= SET + 3) usleep((useconds_t)(rand_r(&seed) % (delay + 1)));
    compute(item);
    pthread_mutex_lock(&lock);
    stream->first = item->next;
    if (!stream->first) stream->last = &stream->first;
    stream->done++;
    finish(item);
    pthread_cond_broadcast(&changed);
  }
  return NULL;
}

static Stream *new_stream(int device) { /* with the lock */
  Stream *stream = must(calloc(1, sizeof *stream));
  stream->device = device;
  stream->id = ++num_streams;
  stream->last = &stream->first;
  stream->next = streams;
  return streams = stream;
}

static Stream *stream_of(cudaStream_t handle) { /* with the lock */
  if ((uintptr_t)handle > 2) return (Stream *)handle;
  Device *device = &devices[current];
  if (!device->stream) device->stream = new_stream(current);
  return device->stream;
}

static void append(Item ***last, Item *item) {
  **last = item;
  *last = &item->next;
}

/* Add an item to a stream, or to the graph that is being captured; with the lock. */
static void push(Stream *stream, Item *item) {
  if (stream->capture) {
    append(&stream->capture->last, item);
    return;
  }
  append(&stream->last, item);
  stream->enqueued++;
  if (!stream->has_thread) {
    pthread_t thread;
    stream->has_thread = true;
    if (pthread_create(&thread, NULL, work, stream)) must(NULL);
    pthread_detach(thread);
  }
  pthread_cond_broadcast(&changed);
}

static Item *new_item(int kind) {
  Item *item = must(calloc(1, sizeof *item));
  item->kind = kind;
  return item;
}

static void drain(Stream *stream) { /* with the lock */
  uint64_t until = stream->enqueued;
  while (stream->done < until) pthread_cond_wait(&changed, &lock);
}

/* Have the runner call a kernel, in the stream's order. */
int fake_enqueue(cudaStream_t handle, long call) {
  Item *item = new_item(CALL);
  item->call = call;
  pthread_mutex_lock(&lock);
  push(stream_of(handle), item);
  pthread_mutex_unlock(&lock);
  return result(cudaSuccess);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
  (void)flags, (void)priority;
  pthread_mutex_lock(&lock);
  *out = (cudaStream_t)new_stream(current);
  pthread_mutex_unlock(&lock);
  return result(cudaSuccess);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
  return cudaStreamCreateWithPriority(out, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t *out) { return cudaStreamCreateWithPriority(out, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  (void)stream; /* its thread stays */
  return result(cudaSuccess);
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *out) {
  (void)stream;
  *out = 0;
  return result(cudaSuccess);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0, *greatest = -5;
  return result(cudaSuccess);
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  pthread_mutex_lock(&lock);
  Stream *stream = stream_of(handle);
  bool busy = stream->first != NULL;
  pthread_mutex_unlock(&lock);
  return result(busy ? cudaErrorNotReady : cudaSuccess);
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  pthread_mutex_lock(&lock);
  Stream *stream = stream_of(handle);
  bool captures = stream->capture != NULL;
  waits++;
  if (!captures) drain(stream);
  pthread_mutex_unlock(&lock);
  return result(captures ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
}
cudaError_t cudaDeviceSynchronize(void) {
  pthread_mutex_lock(&lock);
  waits++;
  for (Stream *stream = streams; stream; stream = stream->next)
    if (stream->device == current) drain(stream);
  pthread_mutex_unlock(&lock);
  return result(cudaSuccess);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *data) {
  Item *item = new_item(HOST);
  item->function = function;
  item->from = data;
  pthread_mutex_lock(&lock);
  push(stream_of(handle), item);
  pthread_mutex_unlock(&lock);
  return result(cudaSuccess);
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
  (void)flags;
  Event *event = must(calloc(1, sizeof *event));
  event->refs = 1;
  event->device = current;
  *out = (cudaEvent_t)event;
  return result(cudaSuccess);
}
cudaError_t cudaEventCreate(cudaEvent_t *out) { return cudaEventCreateWithFlags(out, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  pthread_mutex_lock(&lock);
  drop_event((Event *)handle);
  pthread_mutex_unlock(&lock);
  return result(cudaSuccess);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t to, unsigned flags) {
  (void)flags;
  Event *event = (Event *)handle;
  pthread_mutex_lock(&lock);
  Stream *stream = stream_of(to);
  bool other = event->device != stream->device;
  if (!other) {
    event->graph = stream->capture;
    if (!stream->capture) {
      Item *item = new_item(RECORD);
      item->event = event;
      event->refs++;
      item->version = ++event->recorded;
      push(stream, item);
    }
  }
  pthread_mutex_unlock(&lock);
  return result(other ? cudaErrorInvalidResourceHandle : cudaSuccess);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t of, unsigned flags) {
  (void)flags;
  Event *event = (Event *)of;
  pthread_mutex_lock(&lock);
  Stream *stream = stream_of(handle);
  if (event->graph) {
    stream->capture = event->graph; /* a second stream of a graph: the order of calls is an order */
  } else if (stream->capture && event->done < event->recorded) {
    pthread_mutex_unlock(&lock);
    return result(cudaErrorStreamCaptureIsolation);
  } else if (!stream->capture) {
    Item *item = new_item(WAIT);
    item->event = event;
    event->refs++;
    item->version = event->recorded;
    push(stream, item);
  }
  pthread_mutex_unlock(&lock);
  return result(cudaSuccess);
}
cudaError_t cudaEventQuery(cudaEvent_t handle) {
  Event *event = (Event *)handle;
  pthread_mutex_lock(&lock);
  bool done = event->done >= event->recorded;
  pthread_mutex_unlock(&lock);
  return result(done ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  Event *event = (Event *)handle;
  pthread_mutex_lock(&lock);
  waits++;
  uint64_t until = event->recorded;
  while (event->done < until) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
  return result(cudaSuccess);
}
cudaError_t cudaEventElapsedTime(float *out, cudaEvent_t start, cudaEvent_t end) {
  Event *first = (Event *)start, *second = (Event *)end;
  pthread_mutex_lock(&lock);
  bool never = !first->recorded || !second->recorded;
  bool pending = first->done < first->recorded || second->done < second->recorded;
  *out = (float)(second->time - first->time);
  pthread_mutex_unlock(&lock);
  return result(never ? cudaErrorInvalidResourceHandle
                      : (pending ? cudaErrorNotReady : cudaSuccess));
}

/* ---- CUDA graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode) {
  (void)mode;
  pthread_mutex_lock(&lock);
  Stream *stream = stream_of(handle);
  bool is_default = stream == devices[current].stream;
  if (!is_default) {
    stream->capture = must(calloc(1, sizeof(Graph)));
    stream->capture->last = &stream->capture->items;
  }
  pthread_mutex_unlock(&lock);
  return result(is_default ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *out) {
  pthread_mutex_lock(&lock);
  Graph *graph = stream_of(handle)->capture;
  for (Stream *stream = streams; stream; stream = stream->next)
    if (stream->capture == graph) stream->capture = NULL;
  pthread_mutex_unlock(&lock);
  *out = (cudaGraph_t)graph;
  return result(graph ? cudaSuccess : cudaErrorStreamCaptureInvalidated);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *out) {
  pthread_mutex_lock(&lock);
  *out = stream_of(handle)->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  pthread_mutex_unlock(&lock);
  return result(cudaSuccess);
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *num) {
  pthread_mutex_lock(&lock);
  Graph *capture = stream_of(handle)->capture;
  pthread_mutex_unlock(&lock);
  *status = capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id) *id = (unsigned long long)(uintptr_t)capture;
  if (graph) *graph = (cudaGraph_t)capture;
  if (nodes) *nodes = NULL;
  if (edges) *edges = NULL;
  if (num) *num = 0;
  return result(cudaSuccess);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  (void)mode;
  return result(cudaSuccess);
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *num) {
  (void)nodes;
  *num = 0;
  for (Item *item = ((Graph *)graph)->items; item; item = item->next) ++*num;
  return result(cudaSuccess);
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph,
                                          unsigned long long flags) {
  (void)flags;
  *out = (cudaGraphExec_t)graph; /* one thing: a graph is freed with the process */
  return result(cudaSuccess);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  pthread_mutex_lock(&lock);
  Stream *stream = stream_of(handle);
  for (Item *item = ((Graph *)exec)->items; item; item = item->next) {
    Item *copy = new_item(item->kind);
    *copy = *item;
    copy->next = NULL;
    push(stream, copy);
  }
  pthread_mutex_unlock(&lock);
  return result(cudaSuccess);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  (void)graph;
  return result(cudaSuccess);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  (void)exec;
  return result(cudaSuccess);
}

/* ---- memory ---- */

cudaError_t cudaMalloc(void **out, size_t size) {
  pthread_mutex_lock(&lock);
  Device *device = opened(current);
  size = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  Block **at = &device->blocks;
  size_t offset = 0;
  while (*at && (*at)->offset - offset < size) {
    offset = (*at)->offset + (*at)->size;
    at = &(*at)->next;
  }
  bool fits = offset + size <= device->size;
  if (fits) {
    Block *block = must(calloc(1, sizeof *block));
    block->offset = offset, block->size = size, block->next = *at;
    *at = block;
    device->used += size;
    changes++;
    *out = device->device + offset;
    memset(device->host + offset, 0xFF, size); /* not a number: what is read unwritten shows */
  }
  pthread_mutex_unlock(&lock);
  return result(fits ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaMallocAsync(void **out, size_t size, cudaStream_t stream) {
  (void)stream;
  return cudaMalloc(out, size);
}
cudaError_t cudaFree(void *address) {
  if (!address) return result(cudaSuccess);
  pthread_mutex_lock(&lock);
  Device *device = device_at(address);
  Block **at = device ? &device->blocks : NULL;
  while (at && *at && device->device + (*at)->offset != (char *)address) at = &(*at)->next;
  bool found = at && *at;
  if (found) {
    Block *block = *at;
    *at = block->next;
    device->used -= block->size;
    changes++;
    free(block);
  }
  pthread_mutex_unlock(&lock);
  return result(found ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaFreeAsync(void *address, cudaStream_t stream) {
  (void)stream;
  return cudaFree(address);
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  pthread_mutex_lock(&lock);
  *total = devices[current].size;
  *available = *total - devices[current].used;
  pthread_mutex_unlock(&lock);
  return result(cudaSuccess);
}

static cudaError_t add_range(void *start, size_t size, bool is_registered) {
  Range *range = must(calloc(1, sizeof *range));
  range->start = start, range->size = size, range->is_registered = is_registered;
  pthread_mutex_lock(&lock);
  bool twice = is_registered && (range_at(start) || range_at((char *)start + size - 1));
  if (!twice) {
    range->next = ranges;
    ranges = range;
    changes++;
  }
  pthread_mutex_unlock(&lock);
  return result(twice ? cudaErrorHostMemoryAlreadyRegistered : cudaSuccess);
}
static size_t remove_range(void *start) {
  size_t size = 0;
  pthread_mutex_lock(&lock);
  for (Range **at = &ranges; *at; at = &(*at)->next)
    if ((*at)->start == start) {
      Range *range = *at;
      size = range->size;
      *at = range->next;
      changes++;
      free(range);
      break;
    }
  pthread_mutex_unlock(&lock);
  return size;
}
cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags) {
  (void)flags;
  *out = must(mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  return add_range(*out, size, false);
}
cudaError_t cudaFreeHost(void *address) {
  size_t size = remove_range(address);
  if (size) munmap(address, size);
  return result(size ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaHostRegister(void *address, size_t size, unsigned flags) {
  (void)flags;
  if (!size) return result(cudaErrorInvalidValue);
  return add_range(address, size, true);
}
cudaError_t cudaHostUnregister(void *address) {
  return result(remove_range(address) ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}
cudaError_t cudaHostGetDevicePointer(void **out, void *address, unsigned flags) {
  (void)flags;
  pthread_mutex_lock(&lock);
  Range *range = range_at(address);
  *out = range ? (char *)address + shift_of(range) : NULL;
  pthread_mutex_unlock(&lock);
  return result(range ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *address) {
  memset(out, 0, sizeof *out);
  out->device = -2;
  out->hostPointer = (void *)address;
  pthread_mutex_lock(&lock);
  Device *device = device_at(address);
  Range *range = range_at(address);
  pthread_mutex_unlock(&lock);
  if (device) {
    out->type = cudaMemoryTypeDevice;
    out->device = (int)(device - devices);
    out->devicePointer = (void *)address;
    out->hostPointer = NULL;
  } else if (range) {
    out->type = cudaMemoryTypeHost;
    out->device = current;
    out->devicePointer = (char *)address + shift_of(range);
  }
  return result(cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
                            cudaStream_t handle) {
  (void)kind;
  Item *item = new_item(COPY);
  item->to = fake_host_address(to);
  item->from = fake_host_address(from);
  item->size = size;
  pthread_mutex_lock(&lock);
  bool to_host = !device_at(to) && !range_at(item->to);
  bool from_host = !device_at(from) && !range_at(item->from);
  Stream *stream = stream_of(handle);
  if (from_host) { /* memory that is not pinned is copied before the call returns */
    item->staged = must(malloc(size + 1));
    item->from = memcpy(item->staged, from, size);
  }
  if (from_host || to_host) pageable++;
  push(stream, item);
  if (to_host) drain(stream);
  pthread_mutex_unlock(&lock);
  return result(cudaSuccess);
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
  cudaError_t code = cudaMemcpyAsync(to, from, size, kind, NULL);
  return code ? code : cudaStreamSynchronize(NULL);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int target, const void *from, int source, size_t size,
                                cudaStream_t stream) {
  (void)target, (void)source;
  return cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, stream);
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t handle) {
  Item *item = new_item(SET);
  item->to = fake_host_address(to);
  item->value = value, item->size = size;
  pthread_mutex_lock(&lock);
  push(stream_of(handle), item);
  pthread_mutex_unlock(&lock);
  return result(cudaSuccess);
}
cudaError_t cudaMemset(void *to, int value, size_t size) {
  return cudaMemsetAsync(to, value, size, NULL);
}

/* ---- devices ---- */

cudaError_t cudaGetDeviceCount(int *out) {
  *out = num_devices;
  return result(num_devices ? cudaSuccess : cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int *out) {
  *out = current;
  return result(cudaSuccess);
}
cudaError_t cudaSetDevice(int index) {
  if (index < 0 || index >= num_devices) return result(cudaErrorInvalidDevice);
  current = index;
  return result(cudaSuccess);
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int index) {
  if (index < 0 || index >= num_devices) return result(cudaErrorInvalidDevice);
  memset(out, 0, sizeof *out);
  strcpy(out->name, "Fake GPU (host memory)");
  memset(out->uuid.bytes, index + 1, sizeof out->uuid.bytes);
  out->totalGlobalMem = devices[index].size;
  out->major = 9, out->minor = 0;
  out->multiProcessorCount = 2;
  out->warpSize = 32;
  out->maxThreadsPerBlock = 1024;
  out->maxThreadsPerMultiProcessor = 2048;
  out->regsPerBlock = out->regsPerMultiprocessor = 65536;
  out->sharedMemPerBlock = 49152;
  out->sharedMemPerBlockOptin = out->sharedMemPerMultiprocessor = 232448;
  out->unifiedAddressing = out->canMapHostMemory = 1;
  out->pciBusID = index + 1;
  return result(cudaSuccess);
}
cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr name, int index) {
  (void)index;
  *out = name == cudaDevAttrComputeCapabilityMajor ? 9
         : name == cudaDevAttrMultiProcessorCount ? 2
         : name == cudaDevAttrUnifiedAddressing   ? 1
                                                  : 0;
  return result(cudaSuccess);
}
cudaError_t cudaDeviceCanAccessPeer(int *out, int device, int peer) {
  *out = device != peer;
  return result(cudaSuccess);
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  (void)peer, (void)flags;
  return result(cudaSuccess);
}
cudaError_t cudaDeviceGetPCIBusId(char *out, int size, int index) {
  snprintf(out, (size_t)size, "0000:%02x:00.0", index + 1);
  return result(cudaSuccess);
}
cudaError_t cudaDriverGetVersion(int *out) {
  *out = CUDART_VERSION;
  return result(cudaSuccess);
}
cudaError_t cudaRuntimeGetVersion(int *out) {
  *out = CUDART_VERSION;
  return result(cudaSuccess);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *status) {
  (void)name, (void)version, (void)flags;
  *out = NULL;
  if (status) *status = cudaDriverEntryPointSymbolNotFound;
  return cudaErrorNotSupported;
}
cudaError_t cudaProfilerStart(void) { return result(cudaSuccess); }
cudaError_t cudaProfilerStop(void) { return result(cudaSuccess); }

/* ---- errors ---- */

cudaError_t cudaGetLastError(void) {
  int code = last_error;
  last_error = 0;
  return code ? code : failed;
}
cudaError_t cudaPeekAtLastError(void) { return last_error ? last_error : failed; }
const char *cudaGetErrorName(cudaError_t code) {
  static __thread char text[40];
  snprintf(text, sizeof text, "cudaError %d of the fake GPU", code);
  return text;
}
const char *cudaGetErrorString(cudaError_t code) {
  if (code == cudaErrorMemoryAllocation) return "out of memory";
  return cudaGetErrorName(code);
}

/* ---- torch's own kernels: known by name, never launched ---- */

typedef struct Kernel {
  struct Kernel *next;
  const void *function;
  const char *name;
} Kernel;
static Kernel *kernels[1 << 12];

static Kernel **bucket(const void *function) { return &kernels[((uintptr_t)function >> 4) & 4095]; }

void **__cudaRegisterFatBinary(void *data) {
  (void)data;
  static void *handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
char __cudaInitModule(void **handle) {
  (void)handle;
  return 1;
}
void __cudaRegisterVar(void **handle, char *var, char *address, const char *name, int ext,
                       size_t size, int constant, int global) {
  (void)handle, (void)var, (void)address, (void)name, (void)ext, (void)size, (void)constant;
  (void)global;
}
void __cudaRegisterFunction(void **handle, const char *function, char *device, const char *name,
                            int limit, void *tid, void *bid, void *bdim, void *gdim, int *warp) {
  (void)handle, (void)device, (void)limit, (void)tid, (void)bid, (void)bdim, (void)gdim, (void)warp;
  Kernel *kernel = must(malloc(sizeof *kernel));
  kernel->function = function, kernel->name = name, kernel->next = *bucket(function);
  *bucket(function) = kernel;
}
static cudaError_t refuse(const void *function) {
  const char *name = "unknown";
  for (Kernel *kernel = *bucket(function); kernel; kernel = kernel->next)
    if (kernel->function == function) name = kernel->name;
  fprintf(stderr, "fake GPU: torch launched a kernel of its own: %s\n", name);
  if (getenv("FAKE_GPU_ABORT")) abort();
  return result(cudaErrorNoKernelImageForDevice);
}
cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                             size_t shared, cudaStream_t stream) {
  (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
  return refuse(function);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function,
                                void **arguments) {
  (void)config, (void)arguments;
  return refuse(function);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared, cudaStream_t stream) {
  (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
  return refuse(kernel);
}
cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *function) {
  *out = (cudaKernel_t)function;
  return cudaSuccess;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  (void)grid, (void)block, (void)shared, (void)stream;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  (void)grid, (void)block, (void)shared, (void)stream;
  return cudaSuccess;
}

/* What the generated stubs of all other functions call. */
int fake_missing(const char *name) {
  fprintf(stderr, "fake GPU: %s is not there\n", name);
  if (getenv("FAKE_GPU_ABORT")) abort();
  return result(cudaErrorNotSupported);
}
