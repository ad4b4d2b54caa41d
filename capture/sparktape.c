#include "capture/sparktape.h"

#include "base/clock.h"
#include "base/mem.h"
#include "capture/joined.h"
#include "capture/narrow.h"

typedef struct put_key { int32_t slot; char name[FMT_TAPE_NAME_BYTES]; } put_key;

struct sparktape {
    fmt_tape_writer *w;
    err last;       /* the last failure */
    int32_t round;  /* of the last value, -1: none */
    put_key *there; /* [n_there] of that round: readers take the first of two, so there may be no second */
    size_t n_there, room;
    int64_t n_rounds, n_values, n_refused;
    uint64_t bytes;
};

static void say(const err *e, char *why, size_t why_bytes)
{
    if (why && why_bytes) snprintf(why, why_bytes, "%s", e->msg);
}

static err_code create(const char *path, const char *engine, sparktape **out, err *e)
{
    if (!path || !engine) return err_set(e, ERR_ARG, "sparktape_create: found no %s", path ? "engine" : "path");
    sparktape *t = mem_alloc(1, sizeof *t);
    if (!t) return err_set(e, ERR_NOMEM, "%s: no memory", path);
    *t = (sparktape){ .round = -1 };
    json_t *head = json_pack("{s:s, s:s, s:{s:s, s:s}, s:I}", "format", "sparktape", "producer", "capture API", "identity",
                             "checkpoint", "unknown", "engine", engine, "created",
                             (json_int_t)(clock_wall_ns() / 1000000000u));
    err_code rc = head ? fmt_tape_create(path, head, &t->w, e)
                       : err_set(e, ERR_ARG, "%s: engine: found text that is not UTF-8, or no memory for it", path);
    json_decref(head);
    if (rc == ERR_OK) *out = t;
    else free(t);
    return rc;
}

sparktape *sparktape_create(const char *path, const char *engine, char *why, size_t why_bytes)
{
    sparktape *t = NULL;
    err e = { 0 };
    if (create(path, engine, &t, &e) != ERR_OK) say(&e, why, why_bytes);
    return t;
}

/* What the words of a call say, as a key and a tensor. name_out: FMT_TAPE_NAME_BYTES. */
static err_code parse(const sparktape *t, const char *name, const char *dtype, int ndim, const int64_t *shape,
                      const void *data, char *name_out, fmt_tape_key *key, fmt_tensor *out, err *e)
{
    fmt_dtype d;
    *key = (fmt_tape_key){ .rank = FMT_TAPE_NO_RANK, .name = name_out };
    if (!name || !cap_export_parse(name, &key->round, &key->slot, name_out))
        return err_set(e, ERR_ARG, "name: found '%s', wanted one like round.0.s0.attn_out or round.0.insert.1.main_x",
                       name ? name : "");
    if (!dtype || !fmt_dtype_parse(dtype, &d))
        return err_set(e, ERR_ARG, "%s: dtype: found '%s', wanted a word of safetensors, as BF16", name,
                       dtype ? dtype : "");
    if (ndim < 0 || ndim > FMT_DIMS_MAX || (ndim > 0 && !shape))
        return err_set(e, ERR_ARG, "%s: found %d dimensions, wanted 0 to %d, and their sizes", name, ndim, FMT_DIMS_MAX);
    uint64_t room = UINT64_C(1) << 40; /* elements: past any value, and far from an overflow */
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0 || (shape[i] > 0 && (uint64_t)shape[i] > room))
            return err_set(e, ERR_ARG, "%s: size %d: found %lld", name, i, (long long)shape[i]);
        if (shape[i] > 0) room /= (uint64_t)shape[i];
    }
    *out = fmt_tensor_make(d, data, ndim, shape);
    if (!data && fmt_tensor_elems(out) > 0) return err_set(e, ERR_ARG, "%s: found no data", name);
    if (key->round < t->round)
        return err_set(e, ERR_ARG, "%s: found round %d after round %d", name, key->round, t->round);
    return ERR_OK;
}

static err_code put(sparktape *t, const fmt_tape_key *key, const fmt_tensor *given, err *e)
{
    const bool fresh = key->round != t->round;
    void *there = t->there;
    cap_as as;
    for (size_t i = 0; !fresh && i < t->n_there; i++)
        if (t->there[i].slot == key->slot && strcmp(t->there[i].name, key->name) == 0)
            return err_set(e, ERR_ARG, "%s: found it twice in round %d, wanted it once", key->name, key->round);
    if (fresh) TRY(fmt_tape_flush(t->w, e));
    if (!mem_grow(&there, &t->room, (fresh ? 0 : t->n_there) + 1, sizeof *t->there))
        return err_set(e, ERR_NOMEM, "%s: no memory for its name", key->name);
    t->there = there;
    TRY(cap_put_named(t->w, key, given, &as, e));
    if (fresh) {
        t->round = key->round;
        t->n_rounds++;
        t->n_there = 0;
    }
    put_key *k = &t->there[t->n_there++];
    k->slot = key->slot;
    snprintf(k->name, sizeof k->name, "%s", key->name);
    t->n_values++;
    t->bytes += fmt_tensor_bytes(given);
    return ERR_OK;
}

int sparktape_put(sparktape *t, const char *name, const char *dtype, int ndim, const int64_t *shape, const void *data)
{
    char value[FMT_TAPE_NAME_BYTES];
    fmt_tape_key key;
    fmt_tensor given;
    if (!t) return -1;
    err_code rc = parse(t, name, dtype, ndim, shape, data, value, &key, &given, &t->last);
    if (rc == ERR_OK) rc = put(t, &key, &given, &t->last);
    t->n_refused += rc != ERR_OK;
    return rc == ERR_OK ? 0 : -1;
}

const char *sparktape_error(const sparktape *t) { return t ? t->last.msg : "no tape"; }

int sparktape_finish(sparktape *t, char *why, size_t why_bytes)
{
    err e = { 0 };
    if (!t) {
        err_set(&e, ERR_ARG, "no tape");
        say(&e, why, why_bytes);
        return -1;
    }
    json_t *summary = json_pack("{s:I, s:I, s:I, s:I, s:I}", "rounds", (json_int_t)t->n_rounds, "values",
                                (json_int_t)t->n_values, "raw_bytes", (json_int_t)t->bytes, "dropped",
                                (json_int_t)t->n_refused, "padded_rows", (json_int_t)0);
    err_code rc = summary ? fmt_tape_finish(t->w, summary, &e) : err_set(&e, ERR_NOMEM, "no memory for the summary");
    if (!summary) fmt_tape_discard(t->w);
    json_decref(summary);
    if (rc == ERR_OK && t->n_refused) err_set(&e, ERR_ARG, "%lld values were refused", (long long)t->n_refused);
    say(&e, why, why_bytes);
    free(t->there);
    free(t);
    return rc == ERR_OK ? 0 : -1;
}

void sparktape_discard(sparktape *t)
{
    if (!t) return;
    fmt_tape_discard(t->w);
    free(t->there);
    free(t);
}
