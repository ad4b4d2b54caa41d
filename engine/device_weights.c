#include "engine/device_weights.h"

#include <inttypes.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/inventory_index.h"
#include "kernels/device.h"

enum {
    ALIGN = 256,                /* of every matrix and bank */
    BUFFERS = 2,                /* one is filled while the other is copied */
    BUFFER_BYTES = 32 << 20,    /* a copy of this size runs at the bus's full speed */
    PARALLEL_BYTES = 256 << 10, /* below, waking threads costs more than it saves */
    GROUP = FMT_QDQ_GROUP,
};

/* What is stored of a matrix: its codes as they are, its codes decoded to bf16, or its scales; of EXL3 the tiles, a row of
 * 8 of a block after the other, and the factors of inputs and outputs. KX: an expert's w1 and w3, or w2, as one row of all
 * codes and then all scales, which is gathered and copied so, and re-laid in its place. */
typedef enum content { CODES, DECODED, SCALES, KX, TILES, SUH, SVH } content;

typedef struct item {
    krn_weight from;       /* the rank's slice of the mapped tensor */
    krn_weight below;      /* KX: that of w3, whose rows follow those of w1; n is 0 for w2 */
    eng_wid id;
    int32_t stage, expert;
    content content;
    int32_t n_rows;
    uint64_t row_bytes;    /* on the device, where rows are dense; KX: as it is copied */
    uint64_t offset_bytes; /* in the allocation */
    uint64_t bytes;        /* there */
} item;

/* The allocation, in order of addresses. */
typedef struct layout {
    item *item;
    size_t n;
    uint64_t bytes, row_bytes_max;
} layout;

struct eng_device_weights {
    eng_config config;
    uint8_t *memory;
    uint64_t part_bytes[ENG_PART_SMALL + 1];
    krn_weight *view; /* by eng_weight_index */
    krn_expert_bank bank[ENG_STAGES_MAX][2];
    krn_exl3_bank exl3[ENG_STAGES_MAX][2]; /* tiles NULL: the experts are not EXL3 */
    krn_kx_bank kx[ENG_STAGES_MAX][2];     /* blocks NULL: not of a kx arm */
};

/* What to lay out. */
typedef struct wanted {
    const eng_weights *w;
    int32_t rank, n_ranks;
    const eng_reps *reps;
    bool kx;
} wanted;

/* ---- where everything goes ---- */

static krn_weight slice_of(const wanted *q, eng_wid id, int32_t stage, int32_t expert)
{
    krn_weight whole = eng_weights_held(q->w, q->reps, id, stage, expert);
    eng_range r = eng_cut_range(eng_weights_config(q->w), id, q->rank, q->n_ranks);
    if (eng_wkind_of(id)->cut == ENG_CUT_COLS) return krn_weight_slice(&whole, 0, whole.n, r.first, r.count);
    return krn_weight_slice(&whole, r.first, r.count, 0, whole.k);
}

/* Features of the blocks that a view of n of them touches, the first of them at `first` of its block. */
static int32_t in_blocks(int32_t first, int32_t n) { return eng_exl3_padded(first + n); }
static int32_t inputs_of(const krn_weight *w) { return in_blocks(w->exl3.k0, w->k); }
static int32_t outputs_of(const krn_weight *w) { return in_blocks(w->exl3.n0, w->n); }
/* Rows of tiles in a column of blocks, and bytes of such a row: 8 tiles. */
static int32_t tile_rows_of(const krn_weight *w) { return inputs_of(w) / FMT_EXL3_TILE; }
static int64_t tile_row_bytes_of(const krn_weight *w)
{
    return (int64_t)(FMT_EXL3_BLOCK / FMT_EXL3_TILE) * fmt_exl3_tile_bytes(w->exl3.bits);
}

static uint64_t row_bytes_of(const krn_weight *w, content what)
{
    const uint64_t k = (uint64_t)w->k;
    if (what == TILES) return (uint64_t)tile_row_bytes_of(w);
    if (what == SUH) return (uint64_t)inputs_of(w) * sizeof(uint16_t);
    if (what == SVH) return (uint64_t)outputs_of(w) * sizeof(uint16_t);
    if (what == SCALES) return (k + GROUP - 1) / GROUP;
    if (what == DECODED || w->format == KRN_W_BF16) return k * sizeof(bf16);
    return w->format == KRN_W_F32 ? k * sizeof(float) : w->format == KRN_W_FP4 ? k / 2 : k;
}

static void align(layout *l) { l->bytes = (l->bytes + ALIGN - 1) / ALIGN * ALIGN; }

static void put_end(layout *l, const item *it)
{
    l->bytes += it->bytes;
    if (it->row_bytes > l->row_bytes_max) l->row_bytes_max = it->row_bytes;
}

/* Puts one item at the end. */
static void add(layout *l, const wanted *q, eng_wid id, int32_t stage, int32_t expert, content what)
{
    item *it = &l->item[l->n++];
    *it = (item){ .from = slice_of(q, id, stage, expert), .id = id, .stage = stage, .expert = expert, .content = what,
                  .offset_bytes = l->bytes };
    it->n_rows = it->from.n;
    if (what == SCALES && it->from.format == KRN_W_FP8) /* the first block may begin before the slice */
        it->n_rows = (it->from.scale_row0 + it->from.n + GROUP - 1) / GROUP;
    if (what == TILES) it->n_rows = outputs_of(&it->from) / FMT_EXL3_BLOCK * tile_rows_of(&it->from);
    if (what == SUH || what == SVH) it->n_rows = 1;
    it->row_bytes = row_bytes_of(&it->from, what);
    it->bytes = (uint64_t)it->n_rows * it->row_bytes; /* config.c bounds the sizes: no overflow */
    put_end(l, it);
}

/* One content of all experts of a stage, without gaps: w1 and w3 of the first, of the second, ... or w2. */
static void add_bank(layout *l, const wanted *q, int32_t stage, bool w2, content what)
{
    align(l);
    for (int32_t x = 0; x < eng_weights_config(q->w)->n_experts; x++) {
        add(l, q, w2 ? ENG_W_EXPERT_W2 : ENG_W_EXPERT_W1, stage, x, what);
        if (!w2) add(l, q, ENG_W_EXPERT_W3, stage, x, what);
    }
}

static int32_t kx_rows(const item *it) { return it->from.n + it->below.n; }
static uint64_t kx_code_bytes(const item *it) { return (uint64_t)kx_rows(it) * row_bytes_of(&it->from, CODES); }

/* A stage's bank in the layout of kernels/experts_kx.h: an item an expert. Re-laid it is never smaller than what is copied,
 * so that buffers can mirror the allocation, as for all else. */
static void add_kx_bank(layout *l, const wanted *q, int32_t stage, bool w2)
{
    const eng_wid id = w2 ? ENG_W_EXPERT_W2 : ENG_W_EXPERT_W1;
    align(l);
    for (int32_t x = 0; x < eng_weights_config(q->w)->n_experts; x++) {
        item *it = &l->item[l->n++];
        *it = (item){ .from = slice_of(q, id, stage, x), .id = id, .stage = stage, .expert = x, .content = KX, .n_rows = 1,
                      .offset_bytes = l->bytes };
        if (!w2) it->below = slice_of(q, ENG_W_EXPERT_W3, stage, x);
        it->row_bytes = kx_code_bytes(it) + (uint64_t)kx_rows(it) * row_bytes_of(&it->from, SCALES);
        it->bytes = (uint64_t)krn_kx_bytes(kx_rows(it), it->from.k);
        put_end(l, it);
    }
}

static void lay_out(const wanted *q, layout *l)
{
    const eng_config *c = eng_weights_config(q->w);
    for (int id = 0; id < ENG_W_COUNT; id++) {
        const eng_wkind *kind = eng_wkind_of(id);
        bool fp8 = kind->wclass == ENG_WC_FP8;
        if (!kind->loaded || kind->part == ENG_PART_EXPERTS) continue;
        for (int32_t stage = 0; stage < eng_wid_stages(c, id); stage++) {
            for (content what = TILES; what <= SVH && eng_reps_exl3(q->reps, id); what++) {
                align(l);
                add(l, q, id, stage, 0, what);
            }
            if (eng_reps_exl3(q->reps, id)) continue;
            align(l);
            add(l, q, id, stage, 0, eng_reps_expand(q->reps, id) ? DECODED : CODES);
            if (!fp8 || eng_reps_expand(q->reps, id)) continue;
            align(l);
            add(l, q, id, stage, 0, SCALES);
        }
    }
    for (int32_t stage = 0; stage < c->n_stages; stage++)
        for (int w2 = 0; w2 < 2; w2++) {
            const bool exl3 = eng_reps_exl3(q->reps, ENG_W_EXPERT_W2);
            for (content what = TILES; what <= SVH && exl3; what++) add_bank(l, q, stage, w2, what);
            if (q->kx) add_kx_bank(l, q, stage, w2);
            if (exl3 || q->kx) continue;
            const bool expand = eng_reps_expand(q->reps, ENG_W_EXPERT_W2);
            add_bank(l, q, stage, w2, expand ? DECODED : CODES);
            if (!expand) add_bank(l, q, stage, w2, SCALES);
        }
}

/* Tells the views of an EXL3 item's place. Tiles come before their factors. */
static void point_exl3(eng_device_weights *d, const item *it)
{
    const krn_weight *from = &it->from;
    const void *at = d->memory + it->offset_bytes;
    if (eng_wkind_of(it->id)->part == ENG_PART_EXPERTS) {
        bool w2 = it->id == ENG_W_EXPERT_W2;
        krn_exl3_bank *bank = &d->exl3[it->stage][w2];
        if (it->expert > 0 || it->id == ENG_W_EXPERT_W3) return; /* a bank begins with its first matrix */
        if (it->content == SUH) bank->suh = at;
        else if (it->content == SVH) bank->svh = at;
        else *bank = (krn_exl3_bank){ .bits = from->exl3.bits, .codebook = from->exl3.codebook,
                                      .n_experts = d->config.n_experts, .n = from->n * (w2 ? 1 : 2), .k = from->k,
                                      .tiles = at };
        return;
    }
    krn_weight *v = &d->view[eng_weight_index(&d->config, it->id, it->stage, 0)];
    if (it->content == SUH) v->exl3.suh = at;
    else if (it->content == SVH) v->exl3.svh = at;
    else {
        *v = (krn_weight){ .format = KRN_W_EXL3, .n = from->n, .k = from->k, .data = at,
                           .row_bytes = (int64_t)it->row_bytes, .exl3 = from->exl3 };
        v->exl3.block_bytes = tile_rows_of(from) * (int64_t)it->row_bytes;
    }
}

/* Tells the views of an item's place. Codes come before their scales. */
static void point(eng_device_weights *d, const item *it)
{
    const void *at = d->memory + it->offset_bytes;
    krn_wformat format = it->content == DECODED ? KRN_W_BF16 : it->from.format;
    eng_part part = eng_wkind_of(it->id)->part;
    d->part_bytes[part] += it->bytes;
    if (it->content >= TILES) {
        point_exl3(d, it);
        return;
    }
    if (it->content == KX) {
        if (it->expert > 0) return;
        d->kx[it->stage][it->id == ENG_W_EXPERT_W2] =
            (krn_kx_bank){ .n_experts = d->config.n_experts, .n = kx_rows(it), .k = it->from.k, .blocks = at };
        return;
    }
    if (part == ENG_PART_EXPERTS) {
        bool w2 = it->id == ENG_W_EXPERT_W2;
        krn_expert_bank *bank = &d->bank[it->stage][w2];
        if (it->expert > 0 || it->id == ENG_W_EXPERT_W3) return; /* a bank begins with its first matrix */
        if (it->content == SCALES) bank->scale = at;
        else *bank = (krn_expert_bank){ .format = format, .n_experts = d->config.n_experts,
                                        .n = it->from.n * (w2 ? 1 : 2), .k = it->from.k, .data = at };
        return;
    }
    krn_weight *v = &d->view[eng_weight_index(&d->config, it->id, it->stage, 0)];
    if (it->content == SCALES) {
        v->scale = at;
        v->scale_row_bytes = (int64_t)it->row_bytes;
        v->scale_row0 = it->from.scale_row0;
    } else {
        *v = (krn_weight){ .format = format, .n = it->from.n, .k = it->from.k, .data = at,
                           .row_bytes = (int64_t)it->row_bytes };
    }
}

/* ---- what one kernel runs ---- */

/* Experts of a bank are run by one kernel, without offsets inside a block. */
static err_code check_banks(const wanted *q, err *e)
{
    static const eng_wid OF[] = { ENG_W_EXPERT_W1, ENG_W_EXPERT_W3, ENG_W_EXPERT_W2 };
    const eng_config *c = eng_weights_config(q->w);
    char name[ENG_TENSOR_NAME];
    if (!eng_reps_exl3(q->reps, ENG_W_EXPERT_W1)) return ERR_OK;
    for (int32_t stage = 0; stage < c->n_stages; stage++)
        for (int m = 0; m < 3; m++) /* w1 and w3 are one bank */
            for (int32_t x = 0; x < c->n_experts; x++) {
                const krn_weight v = slice_of(q, OF[m], stage, x), first = slice_of(q, m == 2 ? OF[2] : OF[0], stage, 0);
                eng_weight_name(c, OF[m], stage, x, name);
                if (v.exl3.bits != first.exl3.bits || v.exl3.codebook != first.exl3.codebook)
                    return err_set(e, ERR_INPUT, "tensor %s.trellis: found %d bits, %s, wanted %d bits, %s as of the first "
                                   "expert: only the CPU runs experts of several kinds", name, v.exl3.bits,
                                   fmt_exl3_codebook_name((fmt_exl3_codebook)v.exl3.codebook), first.exl3.bits,
                                   fmt_exl3_codebook_name((fmt_exl3_codebook)first.exl3.codebook));
                if (v.exl3.k0 || v.exl3.n0 || v.k % FMT_EXL3_BLOCK || v.n % FMT_EXL3_BLOCK)
                    return err_set(e, ERR_INPUT, "tensor %s.trellis: rank %d of %d has %d x %d of it, wanted whole blocks "
                                   "of %d: only the CPU cuts them", name, q->rank, q->n_ranks, v.n, v.k,
                                   (int)FMT_EXL3_BLOCK);
            }
    return ERR_OK;
}

/* ---- what bf16 can hold ---- */

/* Whether every code times every one of these scales is a bf16 value, judged by the scales alone. bf16 holds multiples of
 * 2^-133 with up to 8 bits, below 2^128. E2M1 codes are multiples of 2^-1 up to 6: scales from 2^-127 to 2^125 are safe,
 * bytes 0 to 252. E4M3 codes have 4 bits, are multiples of 2^-9 and go up to 448: from 2^-124 to 2^119, bytes 3 to 246. */
static bool scales_are_safe(krn_wformat format, const uint8_t *scale, uint64_t n)
{
    uint8_t lowest = 255, highest = 0;
    for (uint64_t i = 0; i < n; i++) {
        lowest = scale[i] < lowest ? scale[i] : lowest;
        highest = scale[i] > highest ? scale[i] : highest;
    }
    return format == KRN_W_FP8 ? lowest >= 3 && highest <= 246 : highest <= 252;
}

/* ERR_INPUT when the matrix has a value that bf16 cannot hold: decodes it all, which is rarely needed. */
static err_code refuse_inexact(const eng_config *c, const item *it, err *e)
{
    int64_t inexact = 0;
    char name[ENG_TENSOR_NAME];
    bf16 *row = mem_alloc((size_t)it->from.k, sizeof *row);
    eng_weight_name(c, it->id, it->stage, it->expert, name);
    if (!row) return err_set(e, ERR_NOMEM, "tensor %s.weight: no memory for one row", name);
    for (int32_t r = 0; r < it->from.n; r++) inexact += krn_weight_decode_bf16(&it->from, r, 1, row);
    free(row);
    if (inexact == 0) return ERR_OK;
    return err_set(e, ERR_INPUT, "tensor %s.weight: found %" PRId64 " values that bf16 cannot hold, wanted none: only "
                   "a packed arm on the CPU can run", name, inexact);
}

/* ---- filling a buffer ---- */

/* Rows stride_bytes apart to dense ones. */
static void gather(const uint8_t *from, int64_t stride_bytes, int32_t n, uint64_t row_bytes, uint8_t *to)
{
#pragma omp parallel for schedule(static) if ((uint64_t)n * row_bytes >= PARALLEL_BYTES)
    for (int32_t r = 0; r < n; r++) memcpy(to + (uint64_t)r * row_bytes, from + r * stride_bytes, row_bytes);
}

/* Rows of tiles [row, row + n): those of a column of blocks lie far apart in the file. */
static void gather_tiles(const krn_weight *w, int32_t row, int32_t n, uint8_t *to)
{
    const int32_t per_block = tile_rows_of(w);
    const int64_t bytes = tile_row_bytes_of(w);
#pragma omp parallel for schedule(static) if (n * bytes >= PARALLEL_BYTES)
    for (int32_t r = row; r < row + n; r++)
        memcpy(to + (r - row) * bytes, (const uint8_t *)w->data + r % per_block * w->row_bytes +
               r / per_block * w->exl3.block_bytes, (size_t)bytes);
}

/* An expert's codes, then its scales. */
static err_code gather_kx(const eng_config *c, const item *it, uint8_t *to, err *e)
{
    const uint64_t code_bytes = row_bytes_of(&it->from, CODES), scale_bytes = row_bytes_of(&it->from, SCALES);
    item half[2] = { *it, *it };
    uint8_t *scales = to + kx_code_bytes(it);
    half[1].from = it->below;
    half[1].id = ENG_W_EXPERT_W3;
    for (int i = 0; i < 2 && half[i].from.n > 0; i++) {
        const krn_weight *w = &half[i].from;
        gather(w->data, w->row_bytes, w->n, code_bytes, to);
        gather(w->scale, w->scale_row_bytes, w->n, scale_bytes, scales);
        if (!scales_are_safe(w->format, scales, (uint64_t)w->n * scale_bytes)) TRY(refuse_inexact(c, &half[i], e));
        to += (uint64_t)w->n * code_bytes;
        scales += (uint64_t)w->n * scale_bytes;
    }
    return ERR_OK;
}

/* Rows [row, row + n) of an item as they go to the device. */
static err_code fill_rows(const eng_config *c, const item *it, int32_t row, int32_t n, uint8_t *to, err *e)
{
    const krn_weight *w = &it->from;
    switch (it->content) {
    case CODES: gather((const uint8_t *)w->data + row * w->row_bytes, w->row_bytes, n, it->row_bytes, to); break;
    case DECODED:
        if (krn_weight_decode_bf16(w, row, n, (bf16 *)to) != 0) return refuse_inexact(c, it, e);
        break;
    case KX: return gather_kx(c, it, to, e);
    case TILES: gather_tiles(w, row, n, to); break;
    case SUH: memcpy(to, w->exl3.suh, (size_t)it->row_bytes); break;
    case SVH: memcpy(to, w->exl3.svh, (size_t)it->row_bytes); break;
    case SCALES:
        gather(w->scale + row * w->scale_row_bytes, w->scale_row_bytes, n, it->row_bytes, to);
        if (!scales_are_safe(w->format, to, (uint64_t)n * it->row_bytes)) return refuse_inexact(c, it, e);
        break;
    }
    return ERR_OK;
}

/* The next row to load. */
typedef struct cursor { size_t item; int32_t row; } cursor;

static uint64_t offset_of(const layout *l, cursor at)
{
    return l->item[at.item].offset_bytes + (uint64_t)at.row * l->item[at.item].row_bytes;
}

/* Fills to with what follows at, whole rows as far as room goes, and moves at behind them; what is re-laid goes by itself.
 * Gaps between items are zero. */
static err_code fill(const eng_config *c, const layout *l, cursor *at, uint8_t *to, uint64_t room, uint64_t *used, err *e)
{
    const uint64_t start = offset_of(l, *at);
    const bool kx = l->item[at->item].content == KX;
    for (*used = 0; at->item < l->n; *at = (cursor){ at->item + 1, 0 }) {
        const item *it = &l->item[at->item];
        if ((it->content == KX) != kx) break;
        uint64_t begin = offset_of(l, *at) - start, fit = begin < room ? (room - begin) / it->row_bytes : 0;
        int32_t left = it->n_rows - at->row, n = fit < (uint64_t)left ? (int32_t)fit : left;
        if (n > 0) {
            memset(to + *used, 0, begin - *used);
            TRY(fill_rows(c, it, at->row, n, to + begin, e));
            *used = begin + (uint64_t)n * it->row_bytes;
        }
        at->row += n;
        if (n < left) break;
    }
    return ERR_OK;
}

/* ---- loading ---- */

/* A pinned buffer and the stream of its copies: waiting for the stream is waiting for the buffer. scratch: as large, on the
 * device, where a kx arm's experts are re-laid from; else NULL. */
typedef struct buffer { void *bytes, *scratch; krn_stream stream; } buffer;

/* Copies items [first, end), which lie at `from` as from their places on, and re-lays them into these. */
static err_code copy_kx(eng_device_weights *d, const layout *l, size_t first, size_t end, const uint8_t *from,
                        uint64_t used, const buffer *b, err *e)
{
    const uint64_t start = l->item[first].offset_bytes;
    uint8_t *scratch = (uint8_t *)b->scratch + start % ALIGN;
    TRY(krn_copy(scratch, from, used, b->stream, e));
    for (size_t i = first; i < end; i++) {
        const item *it = &l->item[i];
        const uint64_t codes = it->offset_bytes - start, scales = codes + kx_code_bytes(it), behind = codes + it->row_bytes;
        krn_kx_bank *bank = &d->kx[it->stage][it->id == ENG_W_EXPERT_W2];
        for (uint64_t s = scales; s < behind && !bank->large; s++) bank->large = from[s] > KRN_KX_SCALE_SMALL;
        const krn_expert_bank plain = { KRN_W_FP4, 1, kx_rows(it), it->from.k, scratch + codes, scratch + scales };
        TRY(krn_kx_lay(&plain, d->memory + it->offset_bytes, b->stream, e));
    }
    return ERR_OK;
}

static err_code copy_all(eng_device_weights *d, const layout *l, buffer *b, uint64_t room, progress *bar, err *e)
{
    cursor at = { 0 };
    bool done;
    for (int i = 0; at.item < l->n; i = (i + 1) % BUFFERS) {
        /* At the same bytes past a multiple of ALIGN here and on the device, so that what is decoded is aligned too. */
        const size_t first = at.item;
        uint64_t start = offset_of(l, at), used;
        uint8_t *from = (uint8_t *)b[i].bytes + start % ALIGN;
        TRY(krn_stream_wait(b[i].stream, 0, &done, e));
        TRY(fill(&d->config, l, &at, from, room, &used, e));
        if (l->item[first].content == KX) TRY(copy_kx(d, l, first, at.item, from, used, &b[i], e));
        else TRY(krn_copy(d->memory + start, from, used, b[i].stream, e));
        progress_add(bar, (at.item < l->n ? offset_of(l, at) : l->bytes) - start); /* with gaps: a kx arm has many */
    }
    return ERR_OK;
}

static err_code load(eng_device_weights *d, const layout *l, bool kx, bool quiet, err *e)
{
    buffer b[BUFFERS] = { { NULL, NULL, NULL } };
    progress bar;
    err_code rc = ERR_OK;
    /* A small checkpoint takes several rounds as well, and pins no more than it needs. */
    uint64_t room = l->bytes / (2 * BUFFERS) < BUFFER_BYTES ? l->bytes / (2 * BUFFERS) : BUFFER_BYTES;
    if (room < l->row_bytes_max) room = l->row_bytes_max;
    for (int i = 0; i < BUFFERS && rc == ERR_OK; i++) {
        rc = krn_pinned_alloc(room + ALIGN, &b[i].bytes, e);
        if (rc == ERR_OK) rc = krn_stream_open(&b[i].stream, e);
        if (rc == ERR_OK && kx) rc = krn_device_alloc(room + ALIGN, &b[i].scratch, e);
    }
    progress_begin(&bar, "loading weights", l->bytes, quiet);
    if (rc == ERR_OK) rc = copy_all(d, l, b, room, &bar, e);
    for (int i = 0; i < BUFFERS; i++) { /* after an error too: a copy may still read the buffer */
        bool done;
        err_code waited = b[i].stream ? krn_stream_wait(b[i].stream, 0, &done, rc == ERR_OK ? e : NULL) : ERR_OK;
        if (rc == ERR_OK) rc = waited;
        krn_stream_close(b[i].stream);
        krn_device_free(b[i].scratch);
        krn_pinned_free(b[i].bytes);
    }
    progress_end(&bar);
    return rc;
}

err_code eng_device_weights_open(const eng_weights *w, int32_t rank, int32_t n_ranks, const eng_reps *reps, bool kx,
                                 bool quiet, eng_device_weights **out, err *e)
{
    const eng_config *c = eng_weights_config(w);
    const wanted q = { w, rank, n_ranks, reps, kx };
    layout l = { 0 };
    void *memory = NULL;
    err_code rc;
    *out = NULL;
    TRY(eng_cut_check(c, n_ranks, e));
    TRY(eng_weights_need(w, reps, e));
    TRY(check_banks(&q, e));
    CHECK(rank >= 0 && rank < n_ranks && (!kx || reps->experts == ENG_REP_FP4));
    size_t n = eng_weight_count(c);
    eng_device_weights *d = mem_alloc(1, sizeof *d);
    if (d) d->view = mem_alloc(n, sizeof *d->view);
    l.item = mem_alloc(3 * n, sizeof *l.item); /* codes and scales, or tiles and two vectors of factors */
    if (!d || !d->view || !l.item) {
        rc = err_set(e, ERR_NOMEM, "no memory for a table of %zu weights", n);
        goto out;
    }
    d->config = *c;
    lay_out(&q, &l);
    if ((rc = krn_device_alloc(l.bytes, &memory, e)) != ERR_OK) {
        err_wrap(e, "weights of rank %d", rank);
        goto out;
    }
    d->memory = memory;
    for (size_t i = 0; i < l.n; i++) point(d, &l.item[i]);
    if ((rc = load(d, &l, kx, quiet, e)) != ERR_OK) goto out;
    *out = d;
    d = NULL;
out:
    free(l.item);
    eng_device_weights_close(d);
    return rc;
}

void eng_device_weights_close(eng_device_weights *d)
{
    if (!d) return;
    krn_device_free(d->memory);
    free(d->view);
    free(d);
}

const krn_weight *eng_device_weight(const eng_device_weights *d, eng_wid id, int32_t stage)
{
    CHECK(eng_wkind_of(id)->part != ENG_PART_EXPERTS);
    return &d->view[eng_weight_index(&d->config, id, stage, 0)];
}

const krn_expert_bank *eng_device_experts(const eng_device_weights *d, int32_t stage, bool w2)
{
    CHECK(stage >= 0 && stage < d->config.n_stages);
    return &d->bank[stage][w2];
}

const krn_exl3_bank *eng_device_experts_exl3(const eng_device_weights *d, int32_t stage, bool w2)
{
    CHECK(stage >= 0 && stage < d->config.n_stages);
    return d->exl3[stage][w2].tiles ? &d->exl3[stage][w2] : NULL;
}

const krn_kx_bank *eng_device_experts_kx(const eng_device_weights *d, int32_t stage, bool w2)
{
    CHECK(stage >= 0 && stage < d->config.n_stages);
    return d->kx[stage][w2].blocks ? &d->kx[stage][w2] : NULL;
}

uint64_t eng_device_weights_bytes(const eng_device_weights *d, eng_part part)
{
    CHECK(part <= ENG_PART_SMALL);
    return d->part_bytes[part];
}
