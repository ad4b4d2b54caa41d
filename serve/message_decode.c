/* Frames to typed messages. Written out, not msgpack-c's: the library allocates what a length announces before it has seen
 * the bytes. Here one pass walks the whole frame and notes where each key's value lies; what is read later is inside it. */
#include "serve/message_fields.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { KEYS_MAX = 64 }; /* in one message; the longest has 14 of ours */

static uint16_t be16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
static uint32_t be32(const uint8_t *p) { return (uint32_t)be16(p) << 16 | be16(p + 2); }
static uint64_t be64(const uint8_t *p) { return (uint64_t)be32(p) << 32 | be32(p + 4); }
static uint64_t be(const uint8_t *p, size_t width)
{
    return width == 1 ? p[0] : width == 2 ? be16(p) : width == 4 ? be32(p) : be64(p);
}

/* ---- any value ---- */

typedef enum item_kind { NIL, BOOL, INT, F32, F64, STR, BIN, ARRAY, MAP, EXT } item_kind;
static const char *const KIND[] = {
    "nil", "a boolean", "an integer", "a float32", "a float64", "a string", "bytes", "an array", "a map", "an extension",
};

/* One value without what an array or map holds. */
typedef struct item {
    const uint8_t *p;   /* its first byte */
    item_kind kind;
    bool negative;      /* INT: number is then its int64_t */
    uint64_t number;    /* INT, BOOL; ARRAY, MAP: how many elements or pairs */
    size_t head, bytes; /* before the text, bytes or elements; and with text and bytes */
} item;

/* Tags 0xc4 and up: what they are, and the width of the number after them (of EXT, a type byte follows it). */
static const struct { uint8_t kind, width; } TAGS[] = {
    { BIN, 1 }, { BIN, 2 }, { BIN, 4 }, { EXT, 1 }, { EXT, 2 }, { EXT, 4 }, { F32, 4 }, { F64, 8 },
    { INT, 1 }, { INT, 2 }, { INT, 4 }, { INT, 8 }, { INT, 1 }, { INT, 2 }, { INT, 4 }, { INT, 8 },
    { EXT, 0 }, { EXT, 0 }, { EXT, 0 }, { EXT, 0 }, { EXT, 0 },
    { STR, 1 }, { STR, 2 }, { STR, 4 }, { ARRAY, 2 }, { ARRAY, 4 }, { MAP, 2 }, { MAP, 4 },
};

static void wide(item *it, const uint8_t *p, uint8_t tag, size_t width)
{
    uint64_t n = width ? be(p + 1, width) : (uint64_t)1 << (tag - 0xd4); /* fixext: 1, 2, 4, 8 or 16 bytes */
    bool is_signed = tag >= 0xd0 && tag <= 0xd3;
    if (is_signed) n = (uint64_t)((int64_t)(n << (64 - 8 * width)) >> (64 - 8 * width));
    it->negative = is_signed && (int64_t)n < 0;
    it->number = n;
    it->head = it->bytes = 1 + width + (it->kind == EXT);
    if (it->kind == STR || it->kind == BIN || it->kind == EXT) it->bytes += n;
}

/* The value at p, with n bytes to the end. ERR_INPUT: not msgpack, or longer than that. */
static err_code item_at(const uint8_t *start, const uint8_t *p, size_t n, item *it, err *e)
{
    size_t at = (size_t)(p - start), width = 0;
    if (n == 0) return err_set(e, ERR_INPUT, "message: byte %zu: found the end, wanted a value", at);
    uint8_t tag = p[0];
    *it = (item){ .p = p, .head = 1, .bytes = 1 };
    if (tag < 0x80 || tag >= 0xe0) {
        it->kind = INT;
        it->number = (uint64_t)(int8_t)tag;
        it->negative = tag >= 0xe0;
    } else if (tag < 0xa0) {
        it->kind = tag < 0x90 ? MAP : ARRAY;
        it->number = tag & 15;
    } else if (tag < 0xc0) {
        it->kind = STR;
        it->bytes += tag & 31;
    } else if (tag >= 0xc4) {
        it->kind = TAGS[tag - 0xc4].kind;
        width = TAGS[tag - 0xc4].width;
        if (n > width) wide(it, p, tag, width);
        else it->bytes = 1 + width;
    } else if (tag == 0xc1) {
        return err_set(e, ERR_INPUT, "message: byte %zu: found 0xc1, wanted msgpack", at);
    } else {
        it->kind = tag == 0xc0 ? NIL : BOOL;
        it->number = tag == 0xc3;
    }
    if (it->bytes > n)
        return err_set(e, ERR_INPUT, "message: byte %zu: found %zu bytes to the end, wanted %zu", at, n, it->bytes);
    return ERR_OK;
}

/* *end is after the value at *end and all that it holds: one loop, however deep. */
static err_code skip(const uint8_t *start, const uint8_t *limit, const uint8_t **end, err *e)
{
    for (uint64_t n = 1; n > 0; n--) { /* cannot overflow: below 2^33 more for each of at most 2^26 bytes */
        item it = { 0 };
        TRY(item_at(start, *end, (size_t)(limit - *end), &it, e));
        *end += it.bytes;
        n += it.kind == ARRAY ? it.number : it.kind == MAP ? 2 * it.number : 0;
    }
    return ERR_OK;
}

/* ---- the keys of a frame ---- */

typedef struct entry { const char *key; size_t key_bytes; item value; const uint8_t *end; } entry;
typedef struct frame {
    const char *what; /* the op, in messages */
    int n;
    entry entry[KEYS_MAX];
} frame;

static const entry *entry_of(const frame *f, const char *key, size_t key_bytes)
{
    for (const entry *k = f->entry; k < f->entry + f->n; k++)
        if (k->key_bytes == key_bytes && memcmp(k->key, key, key_bytes) == 0) return k;
    return NULL;
}

/* Walks the whole body. On error f holds the keys before the fault. */
static err_code scan(const uint8_t *body, size_t bytes, frame *f, err *e)
{
    const uint8_t *p = body, *limit = body + bytes;
    item map;
    f->what = "message";
    f->n = 0;
    TRY(item_at(body, p, bytes, &map, e));
    if (map.kind != MAP) return err_set(e, ERR_INPUT, "message: found %s, wanted a map", KIND[map.kind]);
    if (map.number > KEYS_MAX)
        return err_set(e, ERR_INPUT, "message: found a map of %" PRIu64 " keys, wanted at most %d", map.number, KEYS_MAX);
    p += map.head;
    for (uint64_t i = 0; i < map.number; i++) {
        item key;
        entry *k = &f->entry[f->n];
        TRY(item_at(body, p, (size_t)(limit - p), &key, e));
        if (key.kind != STR)
            return err_set(e, ERR_INPUT, "message: byte %zu: found %s, wanted a key that is a string", (size_t)(p - body),
                           KIND[key.kind]);
        k->key = (const char *)p + key.head;
        k->key_bytes = key.bytes - key.head;
        if (entry_of(f, k->key, k->key_bytes))
            return err_set(e, ERR_INPUT, "message: byte %zu: found key '%.*s' twice", (size_t)(p - body),
                           (int)(k->key_bytes < 40 ? k->key_bytes : 40), k->key);
        p += key.bytes;
        TRY(item_at(body, p, (size_t)(limit - p), &k->value, e));
        TRY(skip(body, limit, &p, e));
        k->end = p;
        f->n++;
    }
    if (p != limit)
        return err_set(e, ERR_INPUT, "message: byte %zu: found %zu bytes after the map, wanted none", (size_t)(p - body),
                       (size_t)(limit - p));
    return ERR_OK;
}

/* ---- typed values ---- */

static err_code is_kind(const frame *f, const char *key, const item *v, item_kind want, err *e)
{
    if (v->kind == want) return ERR_OK;
    return err_set(e, ERR_INPUT, "%s: %s: found %s, wanted %s", f->what, key, KIND[v->kind], KIND[want]);
}

/* The value of a key that must be there. */
static err_code find(const frame *f, const char *key, item_kind want, const entry **out, err *e)
{
    *out = entry_of(f, key, strlen(key));
    if (!*out) return err_set(e, ERR_INPUT, "%s: key '%s' is missing", f->what, key);
    return is_kind(f, key, &(*out)->value, want, e);
}

static err_code read_u64(const frame *f, const char *key, uint64_t *out, err *e)
{
    const entry *k;
    TRY(find(f, key, INT, &k, e));
    if (k->value.negative)
        return err_set(e, ERR_INPUT, "%s: %s: found %" PRId64 ", wanted 0 or more", f->what, key, (int64_t)k->value.number);
    *out = k->value.number;
    return ERR_OK;
}

/* A whole number from least to most. */
static err_code to_int(const frame *f, const char *key, const item *v, int64_t least, int64_t most, int64_t *out, err *e)
{
    TRY(is_kind(f, key, v, INT, e));
    if (v->negative)
        return err_set(e, ERR_INPUT, "%s: %s: found %" PRId64 ", wanted %" PRId64 " to %" PRId64, f->what, key,
                       (int64_t)v->number, least, most);
    if (v->number < (uint64_t)least || v->number > (uint64_t)most)
        return err_set(e, ERR_INPUT, "%s: %s: found %" PRIu64 ", wanted %" PRId64 " to %" PRId64, f->what, key, v->number,
                       least, most);
    *out = (int64_t)v->number;
    return ERR_OK;
}

/* Printable ASCII of least to room - 1 characters; out is [room]. */
static err_code read_text(const frame *f, const char *key, int32_t least, size_t room, char *out, err *e)
{
    const entry *k;
    TRY(find(f, key, STR, &k, e));
    const char *text = (const char *)k->value.p + k->value.head;
    size_t n = k->value.bytes - k->value.head;
    if (n < (size_t)least || n >= room)
        return err_set(e, ERR_INPUT, "%s: %s: found %zu characters, wanted %d to %zu", f->what, key, n, least, room - 1);
    for (size_t i = 0; i < n; i++)
        if (!srv_printable(text[i]))
            return err_set(e, ERR_INPUT, "%s: %s: found byte 0x%02x, wanted printable ASCII", f->what, key,
                           (uint8_t)text[i]);
    memcpy(out, text, n);
    out[n] = 0;
    return ERR_OK;
}

static err_code read_real(const frame *f, const char *key, double *out, err *e)
{
    const entry *k;
    TRY(find(f, key, F64, &k, e));
    double v;
    memcpy(&v, &k->value.number, sizeof v);
    if (!(isfinite(v) && v >= 0)) return err_set(e, ERR_INPUT, "%s: %s: found %g, wanted 0 or more", f->what, key, v);
    *out = v;
    return ERR_OK;
}

static err_code read_bool(const frame *f, const char *key, bool *out, err *e)
{
    const entry *k;
    TRY(find(f, key, BOOL, &k, e));
    *out = k->value.number != 0;
    return ERR_OK;
}

static err_code read_field(const frame *f, const srv_field *field, void *message, err *e)
{
    void *at = (char *)message + field->offset;
    const entry *k;
    int64_t v;
    switch (field->kind) {
    case SRV_U64: return read_u64(f, field->key, at, e);
    case SRV_BOOL: return read_bool(f, field->key, at, e);
    case SRV_REAL: return read_real(f, field->key, at, e);
    case SRV_NAME: return read_text(f, field->key, field->least, field->room, at, e);
    case SRV_I64:
        TRY(find(f, field->key, INT, &k, e));
        return to_int(f, field->key, &k->value, field->least, INT64_MAX, at, e);
    case SRV_I32:
        TRY(find(f, field->key, INT, &k, e));
        TRY(to_int(f, field->key, &k->value, field->least, INT32_MAX, &v, e));
        *(int32_t *)at = (int32_t)v;
    }
    return ERR_OK;
}

static err_code read_fields(const frame *f, const srv_field *field, int count, void *message, err *e)
{
    for (int i = 0; i < count; i++) TRY(read_field(f, &field[i], message, e));
    return ERR_OK;
}

/* An array of *n elements, or of 1 to most where *n is 0; *p is before its first. */
static err_code to_array(const frame *f, const char *key, const item *v, int32_t most, int32_t *n, const uint8_t **p,
                         err *e)
{
    TRY(is_kind(f, key, v, ARRAY, e));
    if (*n ? v->number != (uint64_t)*n : v->number < 1 || v->number > (uint64_t)most)
        return err_set(e, ERR_INPUT, "%s: %s: found an array of %" PRIu64 ", wanted %d%s", f->what, key, v->number,
                       *n ? *n : most, *n ? "" : " at most, one at least");
    *n = (int32_t)v->number;
    *p = v->p + v->head;
    return ERR_OK;
}

/* The element at *p of an array that was walked; *p is then after it (of an array, before its first). */
static item next(const uint8_t **p)
{
    item it;
    CHECK(item_at(*p, *p, SIZE_MAX, &it, NULL) == ERR_OK);
    *p += it.bytes;
    return it;
}

static err_code to_i32(const frame *f, const char *key, const item *v, int32_t *out, err *e)
{
    int64_t n;
    TRY(to_int(f, key, v, 0, INT32_MAX, &n, e));
    *out = (int32_t)n;
    return ERR_OK;
}

/* ---- messages ---- */

/* op and id, each as far as there is one. */
static err_code read_head(const frame *f, srv_op *op, uint64_t *id, err *e)
{
    char name[SRV_NAME_BYTES] = "";
    err_code rc = read_text(f, "op", 0, sizeof name, name, e);
    for (*op = SRV_HELLO; *op < SRV_OP_COUNT && strcmp(name, srv_op_name(*op)) != 0; ++*op) { }
    err_code rc_id = read_u64(f, "id", id, rc == ERR_OK ? e : NULL);
    return rc == ERR_OK ? rc_id : rc;
}

/* What read_head did not know. */
static err_code unknown_op(const frame *f, err *e)
{
    char name[SRV_NAME_BYTES] = "";
    TRY(read_text(f, "op", 0, sizeof name, name, e));
    return err_set(e, ERR_INPUT, "message: op: found '%s', wanted one of hello, open, insert, draft, release, status",
                   name);
}

static err_code read_draft(const frame *f, srv_draft *d, err *e)
{
    const struct { const char *key; int32_t *v; } array[] = {
        { "slots", d->slot }, { "anchors", d->anchor }, { "pos", d->pos },
    };
    if (d->n_out > ENG_BLOCK_MAX)
        return err_set(e, ERR_INPUT, "draft: n_out: found %d, wanted 1 to %d", d->n_out, ENG_BLOCK_MAX);
    for (size_t a = 0; a < COUNT_OF(array); a++) {
        const entry *k;
        const uint8_t *p;
        TRY(find(f, array[a].key, ARRAY, &k, e));
        TRY(to_array(f, array[a].key, &k->value, ENG_BATCH_MAX, &d->batch, &p, e));
        for (int32_t b = 0; b < d->batch; b++) {
            item it = next(&p);
            TRY(to_i32(f, array[a].key, &it, &array[a].v[b], e));
        }
    }
    return ERR_OK;
}

static err_code read_insert(const frame *f, srv_insert *in, err *e)
{
    const entry *k;
    if (in->rows - 1 > INT32_MAX - in->first_pos)
        return err_set(e, ERR_INPUT, "insert: found %d rows from position %d, wanted positions to %d", in->rows,
                       in->first_pos, INT32_MAX);
    TRY(find(f, "taps", BIN, &k, e));
    in->taps = (const void *)(k->value.p + k->value.head);
    in->taps_bytes = k->value.bytes - k->value.head;
    return ERR_OK;
}

err_code srv_decode_request(const uint8_t *body, size_t bytes, srv_request *r, err *e)
{
    frame f;
    *r = (srv_request){ .op = SRV_OP_COUNT };
    err_code rc = scan(body, bytes, &f, e);
    if (rc != ERR_OK) {
        (void)read_head(&f, &r->op, &r->id, NULL);
        return rc;
    }
    TRY(read_head(&f, &r->op, &r->id, e));
    if (r->op == SRV_OP_COUNT) return unknown_op(&f, e);
    f.what = srv_op_name(r->op);
    if (srv_has_epoch(r->op)) TRY(read_u64(&f, "epoch", &r->epoch, e));
    srv_fields fields = srv_request_fields(r->op);
    if (r->op == SRV_HELLO) { /* the keys of another version are not ours to know */
        TRY(read_field(&f, fields.field, r, e));
        if (r->u.hello.version != SRV_VERSION) return ERR_OK;
    }
    TRY(read_fields(&f, fields.field, fields.count, r, e));
    if (r->op == SRV_DRAFT) return read_draft(&f, &r->u.draft, e);
    if (r->op == SRV_INSERT) return read_insert(&f, &r->u.insert, e);
    return ERR_OK;
}

/* drafts and confidence: arrays of n_out each, by slot. */
static err_code read_drafted(const frame *f, srv_drafted *d, err *e)
{
    for (int a = 0; a < 2; a++) {
        const char *key = a == 0 ? "drafts" : "confidence";
        const entry *k;
        const uint8_t *p;
        TRY(find(f, key, ARRAY, &k, e));
        TRY(to_array(f, key, &k->value, ENG_BATCH_MAX, &d->batch, &p, e));
        for (int32_t b = 0; b < d->batch; b++) {
            item row = next(&p);
            TRY(to_array(f, key, &row, ENG_BLOCK_MAX, &d->n_out, &p, e));
            for (int32_t i = 0; i < d->n_out; i++) {
                item it = next(&p);
                int32_t at = b * d->n_out + i;
                if (a == 0) {
                    TRY(to_i32(f, key, &it, &d->drafts[at], e));
                } else {
                    TRY(is_kind(f, key, &it, F32, e));
                    memcpy(&d->confidence[at], &(uint32_t){ (uint32_t)it.number }, sizeof(float));
                }
            }
        }
    }
    return ERR_OK;
}

static err_code read_status(const frame *f, json_t **out, err *e)
{
    const entry *k;
    TRY(find(f, "status", MAP, &k, e));
    err found = { 0 };
    err_code rc = fmt_msgpack_unpack(k->value.p, (size_t)(k->end - k->value.p), out, &found);
    if (rc == ERR_OK) return ERR_OK;
    return err_set(e, rc == ERR_NOMEM ? rc : ERR_INPUT, "status: %s", found.msg);
}

static err_code read_refusal(const frame *f, srv_reply *r, err *e)
{
    char name[SRV_NAME_BYTES] = "";
    TRY(read_text(f, "refusal", 1, sizeof name, name, e));
    int i = SRV_REFUSED_NONE + 1;
    while (i < SRV_REFUSAL_COUNT && strcmp(name, srv_refusal_name((srv_refusal)i)) != 0) i++;
    if (i == SRV_REFUSAL_COUNT) return err_set(e, ERR_INPUT, "%s: refusal: found '%s', which is not known", f->what, name);
    TRY(read_text(f, "text", 0, sizeof r->text, r->text, e));
    const entry *slot = entry_of(f, "slot", strlen("slot"));
    if (slot) TRY(to_i32(f, "slot", &slot->value, &r->refused_slot, e));
    r->refused = (srv_refusal)i;
    return ERR_OK;
}

err_code srv_decode_reply(const uint8_t *body, size_t bytes, srv_reply *r, err *e)
{
    frame f;
    bool ok;
    *r = (srv_reply){ .op = SRV_OP_COUNT, .refused_slot = -1 };
    TRY(scan(body, bytes, &f, e));
    TRY(read_head(&f, &r->op, &r->id, e));
    f.what = r->op < SRV_OP_COUNT ? srv_op_name(r->op) : "message";
    TRY(read_bool(&f, "ok", &ok, e));
    if (!ok) return read_refusal(&f, r, e);
    if (r->op == SRV_OP_COUNT) return unknown_op(&f, e);
    srv_fields fields = srv_reply_fields(r->op);
    TRY(read_fields(&f, fields.field, fields.count, r, e));
    if (r->op == SRV_DRAFT) return read_drafted(&f, &r->u.drafted, e);
    if (r->op == SRV_STATUS) return read_status(&f, &r->u.status, e);
    return ERR_OK;
}
