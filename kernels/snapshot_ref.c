#include "kernels/snapshot.h"

#include "base/mem.h"

uint64_t krn_snapshot_layout(const krn_snap_item *items, int32_t n_items, const krn_snap_live *live, uint64_t *offset)
{
    uint64_t at = 0;
    for (int32_t i = 0; i < n_items; i++) {
        uint64_t bytes = krn_snapshot_bytes(&items[i], (uint64_t)live->count[items[i].per]);
        offset[i] = at;
        at += (bytes + KRN_SNAP_ALIGN - 1) / KRN_SNAP_ALIGN * KRN_SNAP_ALIGN;
    }
    return at;
}

static const uint8_t *source(const krn_snap_item *it, const krn_snap_live *live)
{
    const uint8_t *src = it->src;
    if (it->per >= KRN_SNAP_PER_WINDOW) src += (uint64_t)live->slot[it->per - KRN_SNAP_PER_WINDOW] * it->slot_bytes;
    return src;
}

static void digest_rows(const uint8_t *src, uint64_t n_rows, uint64_t row_bytes, fmt_dtype dtype, krn_piece *piece)
{
    for (uint64_t r = 0; r < n_rows; r++, src += row_bytes)
        for (uint64_t at = 0; at < row_bytes; at += KRN_PIECE_BYTES, piece++) {
            uint64_t bytes = row_bytes - at < KRN_PIECE_BYTES ? row_bytes - at : KRN_PIECE_BYTES;
            krn_digest_piece_ref(src + at, bytes, at, dtype, piece);
        }
}

void krn_snapshot_ref(const krn_snap_item *items, int32_t n_items, const krn_snap_live *live, void *out)
{
    uint64_t offset[KRN_SNAP_ITEMS_MAX];
    CHECK(n_items <= KRN_SNAP_ITEMS_MAX);
    krn_snapshot_layout(items, n_items, live, offset);
    for (int32_t i = 0; i < n_items; i++) {
        const krn_snap_item *it = &items[i];
        uint64_t n = (uint64_t)live->count[it->per];
        uint8_t *to = (uint8_t *)out + offset[i];
        if (n == 0) continue; /* a dead window's slot says nothing */
        const uint8_t *src = source(it, live);
        if (it->keep == KRN_SNAP_COPY) {
            memcpy(to, src, (size_t)krn_snapshot_bytes(it, n));
        } else if (it->keep == KRN_SNAP_DIGEST) {
            digest_rows(src, n, it->row_bytes, (fmt_dtype)it->dtype, (krn_piece *)(void *)to);
        } else {
            const float *x = (const float *)(const void *)src;
            const int64_t cols = it->cols, rows = (int64_t)krn_snapshot_top_rows(it, n);
            const int32_t k = (int32_t)krn_snapshot_top(it);
            float *values = (float *)(void *)to;
            krn_top_rows(&x, &cols, 1, rows, k, values, (int32_t *)(values + rows * k));
        }
    }
}
