/* Typed messages to frames. Packing is msgpack-c's, straight into the caller's buffer. */
#include "serve/message_fields.h"

#include <inttypes.h>
#include <math.h>
#include <msgpack.h>
#include <string.h>

#include "base/mem.h"

/* Where a frame grows. The first error sticks and ends the growth; end() reports it. */
typedef struct sink {
    msgpack_packer pk;
    srv_buf *b;
    size_t start; /* of the frame */
    size_t behind; /* bytes of it that the caller sends behind what is here */
    const char *op;
    err found;
} sink;

static int sink_write(void *ctx, const char *data, size_t bytes)
{
    sink *s = ctx;
    if (s->found.code != ERR_OK) return -1;
    return srv_buf_append(s->b, data, bytes, &s->found) == ERR_OK ? 0 : -1;
}

static void begin(sink *s, srv_buf *b, srv_op op, int n_keys)
{
    *s = (sink){ .b = b, .start = b->bytes, .op = srv_op_name(op) };
    msgpack_packer_init(&s->pk, s, sink_write);
    sink_write(s, (const char[SRV_FRAME_HEADER_BYTES]){ 0 }, SRV_FRAME_HEADER_BYTES);
    msgpack_pack_map(&s->pk, (size_t)n_keys);
}

static err_code end(sink *s, err *e)
{
    size_t body = s->b->bytes - s->start - SRV_FRAME_HEADER_BYTES + s->behind;
    if (s->found.code == ERR_OK && body > SRV_FRAME_MAX_BYTES)
        err_set(&s->found, ERR_ARG, "%s: found a frame of %zu bytes, wanted at most %d", s->op, body, SRV_FRAME_MAX_BYTES);
    if (s->found.code == ERR_OK) {
        put_u32(s->b->data + s->start, (uint32_t)body);
        return ERR_OK;
    }
    s->b->bytes = s->start;
    if (e) *e = s->found;
    return s->found.code;
}

/* Where a fault is reported; nowhere when there was one before. */
static err *fault(sink *s) { return s->found.code == ERR_OK ? &s->found : NULL; }

static void put_text(sink *s, const char *text)
{
    size_t n = strlen(text);
    msgpack_pack_str(&s->pk, n);
    msgpack_pack_str_body(&s->pk, text, n);
}

static void put_int(sink *s, const char *key, int64_t v, int64_t least)
{
    if (v < least)
        err_set(fault(s), ERR_ARG, "%s: %s: found %" PRId64 ", wanted %" PRId64 " or more", s->op, key, v, least);
    msgpack_pack_int64(&s->pk, v);
}

static void put_name(sink *s, const srv_field *f, const char *name)
{
    size_t n = strnlen(name, f->room);
    bool printable = true;
    for (size_t i = 0; i < n; i++) printable = printable && srv_printable(name[i]);
    if (n < (size_t)f->least || n == f->room || !printable) {
        err_set(fault(s), ERR_ARG, "%s: %s: wanted %d to %u printable ASCII characters", s->op, f->key, f->least,
                f->room - 1);
        return;
    }
    put_text(s, name);
}

static void put_fields(sink *s, srv_fields fields, const void *message)
{
    for (int i = 0; i < fields.count; i++) { /* of none there is no first one to point to */
        const srv_field *f = &fields.field[i];
        const void *at = (const char *)message + f->offset;
        put_text(s, f->key);
        switch (f->kind) {
        case SRV_I32: put_int(s, f->key, *(const int32_t *)at, f->least); break;
        case SRV_I64: put_int(s, f->key, *(const int64_t *)at, f->least); break;
        case SRV_U64: msgpack_pack_uint64(&s->pk, *(const uint64_t *)at); break;
        case SRV_BOOL: *(const bool *)at ? msgpack_pack_true(&s->pk) : msgpack_pack_false(&s->pk); break;
        case SRV_NAME: put_name(s, f, at); break;
        case SRV_REAL: {
            double v = *(const double *)at;
            if (!(isfinite(v) && v >= 0))
                err_set(fault(s), ERR_ARG, "%s: %s: found %g, wanted 0 or more", s->op, f->key, v);
            msgpack_pack_double(&s->pk, v);
        }
        }
    }
}

/* ERR_ARG unless batch and n_out fit the arrays of a draft. */
static void check_batch(sink *s, int32_t batch, int32_t n_out)
{
    if (batch < 1 || batch > ENG_BATCH_MAX || n_out < 1 || n_out > ENG_BLOCK_MAX)
        err_set(fault(s), ERR_ARG, "draft: found %d slots and n_out %d, wanted 1 to %d and 1 to %d", batch, n_out,
                ENG_BATCH_MAX, ENG_BLOCK_MAX);
}

static void put_draft(sink *s, const srv_draft *d)
{
    const struct { const char *key; const int32_t *v; } array[] = {
        { "slots", d->slot }, { "anchors", d->anchor }, { "pos", d->pos },
    };
    check_batch(s, d->batch, d->n_out);
    for (size_t a = 0; a < COUNT_OF(array) && s->found.code == ERR_OK; a++) {
        put_text(s, array[a].key);
        msgpack_pack_array(&s->pk, (size_t)d->batch);
        for (int32_t b = 0; b < d->batch; b++) put_int(s, array[a].key, array[a].v[b], 0);
    }
}

static void put_drafted(sink *s, const srv_drafted *d)
{
    check_batch(s, d->batch, d->n_out);
    for (int a = 0; a < 2 && s->found.code == ERR_OK; a++) {
        put_text(s, a == 0 ? "drafts" : "confidence");
        msgpack_pack_array(&s->pk, (size_t)d->batch);
        for (int32_t i = 0; i < d->batch * d->n_out; i++) {
            if (i % d->n_out == 0) msgpack_pack_array(&s->pk, (size_t)d->n_out);
            if (a == 0) put_int(s, "drafts", d->drafts[i], 0);
            else msgpack_pack_float(&s->pk, d->confidence[i]);
        }
    }
}

static void put_status(sink *s, const json_t *status)
{
    uint8_t *packed = NULL;
    size_t bytes;
    put_text(s, "status");
    if (!json_is_object(status)) err_set(fault(s), ERR_ARG, "status: found no map");
    else if (fmt_msgpack_pack(status, &packed, &bytes, fault(s)) == ERR_OK) sink_write(s, (const char *)packed, bytes);
    free(packed);
}

/* rows_behind: an insert's rows, the last bytes of its frame, are left to the caller. */
static err_code encode_request(const srv_request *r, bool rows_behind, srv_buf *b, err *e)
{
    if (r->op >= SRV_OP_COUNT)
        return err_set(e, ERR_ARG, "message: found op %d, wanted 0 to %d", (int)r->op, SRV_OP_COUNT - 1);
    srv_fields fields = srv_request_fields(r->op);
    int more = r->op == SRV_DRAFT ? 3 : r->op == SRV_INSERT ? 1 : 0;
    sink s;
    begin(&s, b, r->op, 2 + srv_has_epoch(r->op) + fields.count + more);
    put_text(&s, "op");
    put_text(&s, srv_op_name(r->op));
    put_text(&s, "id");
    msgpack_pack_uint64(&s.pk, r->id);
    if (srv_has_epoch(r->op)) {
        put_text(&s, "epoch");
        msgpack_pack_uint64(&s.pk, r->epoch);
    }
    put_fields(&s, fields, r);
    if (r->op == SRV_DRAFT) put_draft(&s, &r->u.draft);
    if (r->op == SRV_INSERT) {
        const srv_insert *in = &r->u.insert;
        put_text(&s, "taps");
        if (in->taps_bytes > SRV_FRAME_MAX_BYTES)
            err_set(fault(&s), ERR_ARG, "insert: taps: found %" PRIu64 " bytes, wanted at most %d", in->taps_bytes,
                    SRV_FRAME_MAX_BYTES);
        else {
            msgpack_pack_bin(&s.pk, in->taps_bytes);
            if (rows_behind) s.behind = (size_t)in->taps_bytes;
            else msgpack_pack_bin_body(&s.pk, in->taps, in->taps_bytes);
        }
    }
    return end(&s, e);
}

err_code srv_encode_request(const srv_request *r, srv_buf *b, err *e) { return encode_request(r, false, b, e); }
err_code srv_encode_request_head(const srv_request *r, srv_buf *b, err *e) { return encode_request(r, true, b, e); }

static void put_refusal(sink *s, const srv_reply *r)
{
    char line[SRV_TEXT_BYTES];
    snprintf(line, sizeof line, "%s", r->text);
    for (char *c = line; *c; c++)
        if (!srv_printable(*c)) *c = '?';
    put_text(s, "refusal");
    put_text(s, srv_refusal_name(r->refused));
    put_text(s, "text");
    put_text(s, line);
    if (r->refused_slot < 0) return;
    put_text(s, "slot");
    put_int(s, "slot", r->refused_slot, 0);
}

err_code srv_encode_reply(const srv_reply *r, srv_buf *b, err *e)
{
    bool ok = r->refused == SRV_REFUSED_NONE;
    if (r->refused >= SRV_REFUSAL_COUNT || (ok && r->op >= SRV_OP_COUNT))
        return err_set(e, ERR_ARG, "message: found op %d and refusal %d, wanted known ones", (int)r->op, (int)r->refused);
    srv_fields fields = ok ? srv_reply_fields(r->op) : (srv_fields){ 0 };
    int more = !ok ? 2 + (r->refused_slot >= 0) : r->op == SRV_DRAFT ? 2 : r->op == SRV_STATUS ? 1 : 0;
    sink s;
    begin(&s, b, r->op, 3 + fields.count + more);
    put_text(&s, "id");
    msgpack_pack_uint64(&s.pk, r->id);
    put_text(&s, "op");
    put_text(&s, srv_op_name(r->op));
    put_text(&s, "ok");
    ok ? msgpack_pack_true(&s.pk) : msgpack_pack_false(&s.pk);
    put_fields(&s, fields, r);
    if (!ok) put_refusal(&s, r);
    else if (r->op == SRV_DRAFT) put_drafted(&s, &r->u.drafted);
    else if (r->op == SRV_STATUS) put_status(&s, r->u.status);
    return end(&s, e);
}
