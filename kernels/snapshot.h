/* Snapshots: one launch that keeps what a step left in device memory, before the next step writes over it.
 *
 * Each item is one value of the step (rows of row_bytes, all of them contiguous). It is copied, or its pieces' digests are
 * taken (kernels/digest.h), or the largest entries of each row. Everything goes into one packed buffer, so that one copy
 * brings it to the host. How many rows are live comes with the launch: padding is never read. */
#ifndef KERNELS_SNAPSHOT_H
#define KERNELS_SNAPSHOT_H

#include "kernels/device.h"
#include "kernels/digest.h"
#include "kernels/top_rows.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KRN_SNAP_ITEMS_MAX = 512, KRN_SNAP_ALIGN = 256, KRN_SNAP_SLOTS = 4 };

/* What the first dimension of a value counts; the live counts of a launch are indexed by it. */
typedef enum krn_snap_per {
    KRN_SNAP_PER_ROW,     /* T or P rows */
    KRN_SNAP_PER_SLOT,    /* batch entries */
    KRN_SNAP_PER_WINDOW,  /* the ring of one batch entry: window rows of it are live */
    KRN_SNAP_PER_COUNT = KRN_SNAP_PER_WINDOW + KRN_SNAP_SLOTS, /* PER_WINDOW + b: of batch entry b */
} krn_snap_per;

typedef enum krn_snap_keep {
    KRN_SNAP_COPY = 1,   /* n_rows * row_bytes */
    KRN_SNAP_DIGEST = 2, /* krn_piece [krn_pieces(n_rows, row_bytes)] */
    KRN_SNAP_TOP_ROWS = 4, /* F32 rows of `cols` columns each, all rows of the value: float [n][k] then int32 [n][k],
                              k = min(KRN_TOP_ROWS, cols): descending, the lower column first among equals, NaN after every
                              number. n = n_rows * row_bytes / (4 * cols) */
} krn_snap_keep;

typedef struct krn_snap_item {
    const void *src;      /* device; of a window item the ring of slot 0, the launch's slot adds slot_bytes each */
    uint64_t row_bytes;   /* of one unit of `per`; a multiple of the element's bytes */
    uint64_t slot_bytes;  /* window items: from one slot's ring to the next; else 0 */
    int32_t per;          /* krn_snap_per */
    int32_t keep;         /* one of krn_snap_keep */
    int32_t dtype;        /* fmt_dtype: BF16, F32 or I32 */
    int32_t cols;         /* TOP_ROWS; else 0 */
} krn_snap_item;

/* The live counts of a launch: count[per] units; slot[b]: engine slot of batch entry b (window items of b read its ring).
 * Where a count is 0 the slot says nothing. */
typedef struct krn_snap_live {
    int32_t count[KRN_SNAP_PER_COUNT];
    int32_t slot[KRN_SNAP_SLOTS];
} krn_snap_live;

/* Entries of TOP_ROWS a row. */
KRN_HOST_DEVICE static inline uint64_t krn_snapshot_top(const krn_snap_item *it)
{
    return (uint64_t)(it->cols < KRN_TOP_ROWS ? it->cols : (int32_t)KRN_TOP_ROWS);
}

/* Rows of a TOP_ROWS item of n live units. */
KRN_HOST_DEVICE static inline uint64_t krn_snapshot_top_rows(const krn_snap_item *it, uint64_t n)
{
    return n * it->row_bytes / (sizeof(float) * (uint64_t)it->cols);
}

/* Bytes of an item's part when n of its units are live: the rule of layout, for host and device. */
KRN_HOST_DEVICE static inline uint64_t krn_snapshot_bytes(const krn_snap_item *it, uint64_t n)
{
    if (it->keep == KRN_SNAP_COPY) return n * it->row_bytes;
    if (it->keep == KRN_SNAP_DIGEST) return krn_pieces(n, it->row_bytes) * sizeof(krn_piece);
    return krn_snapshot_top_rows(it, n) * krn_snapshot_top(it) * (sizeof(float) + sizeof(int32_t));
}

/* Where item i's part begins in the packed buffer, offset[n_items], and the bytes of all (the return value): parts lie in
 * item order, each at the next multiple of KRN_SNAP_ALIGN, and so does what follows the last one. Bytes between parts are
 * never written. */
uint64_t krn_snapshot_layout(const krn_snap_item *items, int32_t n_items, const krn_snap_live *live, uint64_t *offset);

/* krn_snapshot - items: the same array in device memory and in host memory. out: device, krn_snapshot_layout bytes, a
 * multiple of 16. A src need only be aligned to its elements; aligned to 16 (rows of a digest too) it is read faster.
 * Match     krn_snapshot_ref, bit for bit but for sum_squares
 * Order     sum_squares of a piece: lane l of 32 takes its 16-byte vectors l, l+32, ... (counted from the piece's start),
 *           elements in order; the squares of even elements are added up in one sum, of odd ones in another (float64, where
 *           the square is exact), and the two are added; then lane l += lane l+16, +8, +4, +2, +1. NaN counts as 0
 * Graph     no sync, no allocation, no host read, at most two launches: copies and digests where items have any, largest
 *           entries where items have any. The grids depend on the items alone, not on live
 * ERR_ARG   too many items, a bad item, 16 GiB or more to pack.  ERR_DEVICE */
MUST_USE err_code krn_snapshot(const krn_snap_item *items_dev, const krn_snap_item *items_host, int32_t n_items,
                               const krn_snap_live *live, void *out, krn_stream s, err *e);
/* The twin, all in host memory. */
void krn_snapshot_ref(const krn_snap_item *items, int32_t n_items, const krn_snap_live *live, void *out);

#ifdef __cplusplus
}
#endif

#endif
