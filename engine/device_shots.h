/* One group's part of a pool of shots on CUDA: each shot's buffer in device memory, its image in pinned memory, and the
 * stream that brings one to the other. A build without CUDA has device_none.c. */
#ifndef ENGINE_DEVICE_SHOTS_H
#define ENGINE_DEVICE_SHOTS_H

#include "engine/shots_fill.h"

typedef struct eng_device_shots eng_device_shots;

typedef struct eng_device_shots_setup {
    eng_shot_items (*items)[ENG_SHOT_TABLES]; /* [local ranks]; src is set by open; borrowed until close */
    int32_t depth, n_parts;                   /* shots; buckets of the longest insert */
    uint64_t part_bytes, shot_bytes;          /* from one part to the next; of a shot, all parts or a draft */
} eng_device_shots_setup;

/* The calling thread's device changes. ERR_NOMEM, ERR_DEVICE. */
MUST_USE err_code eng_device_shots_open(eng_device *d, const eng_device_shots_setup *setup, eng_device_shots **out, err *e);
void eng_device_shots_close(eng_device_shots *s); /* NULL is a no-op */
/* On the group's thread: puts on the step's stream the launch that packs what is live of a table's values into a part of
 * the shot, and behind it, on the other stream, the copy to the host. Does not wait. */
MUST_USE err_code eng_device_shots_pack(eng_device_shots *s, int32_t shot, int32_t part, int32_t table,
                                        const krn_snap_live *live, err *e);
/* Any one thread at a time per shot; its device changes. Waits for what was packed; *us: what packing took of the card. */
MUST_USE err_code eng_device_shots_wait(eng_device_shots *s, int32_t shot, double *us, err *e);
/* The pinned image, valid until close. */
uint8_t *eng_device_shots_data(eng_device_shots *s, int32_t shot);

#endif
