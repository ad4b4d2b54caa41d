/* What C callers need of a CUDA device: memory, copies, streams, events, graphs. Plain C, so that no caller includes a CUDA
 * header; built only where CUDA is found (HAVE_CUDA).
 *
 * Every call acts on the calling thread's current device (krn_device_use) and returns ERR_DEVICE with CUDA's own words when
 * CUDA refuses. Pointers named dev are device memory, host is any host memory unless "pinned" is said. */
#ifndef KERNELS_DEVICE_H
#define KERNELS_DEVICE_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *krn_stream; /* cudaStream_t */
typedef struct CUevent_st *krn_event;   /* cudaEvent_t */

/* After a launch: ERR_DEVICE when it was refused (a bad configuration, no kernel for this card). A fault inside the kernel
 * shows at the next synchronisation. */
MUST_USE err_code krn_launched(const char *op, err *e);
/* Launches of this thread so far, run or captured: every launcher ends in krn_launched. */
int64_t krn_launch_count(void);

/* ---- devices ---- */
typedef struct krn_device_info {
    char name[64];
    int32_t sm_major, sm_minor, n_sm;
    uint64_t memory_bytes, memory_free_bytes; /* free: at the time of the call */
    int32_t driver_version, runtime_version;  /* as CUDA counts: 13000 is 13.0 */
    char bus[32];                             /* "0000:1B:00.0", by which the driver's own tools know it */
} krn_device_info;

/* 0 when there is no device or no driver. */
int32_t krn_device_count(void);
/* Makes device the calling thread's. ERR_DEVICE: no such device (found, wanted). */
MUST_USE err_code krn_device_use(int32_t device, err *e);
MUST_USE err_code krn_device_info_get(int32_t device, krn_device_info *out, err *e);

/* Whether kernels on `from` read and write memory of `to` without the host in between. */
MUST_USE err_code krn_device_reaches(int32_t from, int32_t to, bool *out, err *e);

/* ---- memory ---- never inside a step */
/* At least 256-byte aligned; bytes 0 gives one byte. ERR_NOMEM says how much was wanted and is free. The bytes are zero. */
MUST_USE err_code krn_device_alloc(uint64_t bytes, void **out, err *e);
void krn_device_free(void *dev); /* NULL is a no-op */
/* Pinned host memory: the source and target of copies that run beside the host. */
MUST_USE err_code krn_pinned_alloc(uint64_t bytes, void **out, err *e);
void krn_pinned_free(void *host); /* NULL is a no-op */
/* How often device or pinned memory was taken by this process: a step leaves it as it is. */
uint64_t krn_device_alloc_count(void);

/* ---- streams, copies, events ---- all asynchronous but the two waits; to close NULL is a no-op */
MUST_USE err_code krn_stream_open(krn_stream *out, err *e);
void krn_stream_close(krn_stream s);
/* Waits until all work on s is done, or for deadline_ns (0: without end). *done is false when the time was up; a fault in
 * a kernel is ERR_DEVICE. It polls, so that a stuck collective can be given up. */
MUST_USE err_code krn_stream_wait(krn_stream s, uint64_t deadline_ns, bool *done, err *e);
/* Copies between any two of device and host memory; host memory should be pinned. */
MUST_USE err_code krn_copy(void *to, const void *from, uint64_t bytes, krn_stream s, err *e);
MUST_USE err_code krn_fill(void *dev, uint8_t byte, uint64_t bytes, krn_stream s, err *e);
MUST_USE err_code krn_event_open(bool timed, krn_event *out, err *e);
void krn_event_close(krn_event v);
MUST_USE err_code krn_event_record(krn_event v, krn_stream s, err *e);
MUST_USE err_code krn_event_follow(krn_event v, krn_stream s, err *e); /* later work on s waits for v */
/* The same while s is captured, for an event that is recorded outside of the capture: whenever the graph gets there it
 * waits for what the event then stands behind. One node of the graph. */
MUST_USE err_code krn_event_follow_outside(krn_event v, krn_stream s, err *e);
/* As krn_stream_wait, for what stands before the event; done at once when it was never recorded. */
MUST_USE err_code krn_event_wait(krn_event v, uint64_t deadline_ns, bool *done, err *e);
MUST_USE err_code krn_event_elapsed_us(krn_event from, krn_event to, double *us, err *e); /* both done */

/* Writes value to *pinned, host memory of krn_pinned_alloc, when the stream gets there: how far a stuck step came. */
MUST_USE err_code krn_mark(int32_t *pinned, int32_t value, krn_stream s, err *e);

/* Keeps the stream busy for us microseconds, so that a host can put work behind it. */
MUST_USE err_code krn_delay(int32_t us, krn_stream s, err *e);

/* ---- graphs ---- */
typedef struct krn_graph krn_graph;
/* Between begin and end, work put on s (and on streams that follow its events) is recorded, not run. After an error in
 * between, krn_capture_abort ends the capture. */
MUST_USE err_code krn_capture_begin(krn_stream s, err *e);
MUST_USE err_code krn_capture_end(krn_stream s, krn_graph **out, err *e);
void krn_capture_abort(krn_stream s);
int64_t krn_graph_kernels(const krn_graph *g); /* kernel nodes of it */
int64_t krn_graph_nodes(const krn_graph *g);   /* all nodes */
/* Brings what g needs to the device now, so that its first launch does not. */
MUST_USE err_code krn_graph_upload(krn_graph *g, krn_stream s, err *e);
MUST_USE err_code krn_graph_launch(krn_graph *g, krn_stream s, err *e);
void krn_graph_close(krn_graph *g); /* NULL is a no-op */

#ifdef __cplusplus
}
#endif

#endif
