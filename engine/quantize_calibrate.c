#include "engine/quantize_calibrate.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "engine/identity.h"
#include "formats/number.h"
#include "formats/tape.h"

struct eng_calibration {
    fmt_tape *tape;
    char id[FMT_SHA256_HEX];
};

/* Where a kind's inputs stand on a tape; "s*." before the names of stages. wkv serves both steps. */
static const struct source { const char *name[2]; } SOURCES[ENG_W_COUNT] = {
    [ENG_W_MAIN_PROJ] = { { "taps" } },
    [ENG_W_WQ_A] = { { "attn.norm" } },
    [ENG_W_WQ_B] = { { "attn.qr" } },
    [ENG_W_WKV] = { { "attn.norm", "main_x" } },
    [ENG_W_WO_B] = { { "attn.wo_a" } },
    [ENG_W_EXPERT_W1] = { { "ffn.norm" } },
    [ENG_W_EXPERT_W3] = { { "ffn.norm" } },
    [ENG_W_EXPERT_W2] = { { "ffn.h" } },
    [ENG_W_SHARED_W1] = { { "ffn.norm" } },
    [ENG_W_SHARED_W3] = { { "ffn.norm" } },
    [ENG_W_HEAD] = { { "head.norm" } },
};

/* "taps", "main_x" and the head's belong to no stage. */
static bool is_source(const char *found, const char *name, int32_t stage)
{
    char whole[FMT_TAPE_NAME_BYTES];
    if (strncmp(name, "attn.", 5) != 0 && strncmp(name, "ffn.", 4) != 0) return strcmp(found, name) == 0;
    snprintf(whole, sizeof whole, "s%d.%s", stage, name);
    return strcmp(found, whole) == 0;
}

/* ---- open ---- */

static bool is_any_source(const char *found)
{
    const char *rest = found[0] == 's' ? strchr(found, '.') : NULL;
    for (int id = 0; id < ENG_W_COUNT; id++)
        for (int k = 0; k < 2; k++) {
            const char *name = SOURCES[id].name[k];
            if (name && (strcmp(found, name) == 0 || (rest && strcmp(rest + 1, name) == 0))) return true;
        }
    return false;
}

static err_code identify(eng_calibration *c, err *e)
{
    fmt_sha256_state *state;
    fmt_sha256 sum;
    bool deep = false;
    TRY(fmt_sha256_open(&state, e));
    for (size_t i = 0; i < fmt_tape_count(c->tape); i++) {
        fmt_tape_record r;
        char line[FMT_TAPE_NAME_BYTES + 96];
        fmt_tape_at(c->tape, i, &r);
        if (r.tier != FMT_TIER_TENSOR || !is_any_source(r.key.name)) continue;
        deep = deep || strcmp(r.key.name, "s0.ffn.norm") == 0;
        int n = snprintf(line, sizeof line, "%d %d %d %s %016" PRIx64 "\n", r.key.round, r.key.slot, r.key.rank, r.key.name,
                         r.hash);
        fmt_sha256_add(state, line, (size_t)n);
    }
    fmt_sha256_close(state, &sum);
    fmt_sha256_hex(&sum, c->id);
    if (deep) return ERR_OK;
    return err_set(e, ERR_INPUT, "%s: found no s0.ffn.norm, wanted a tape of level deep", fmt_tape_path(c->tape));
}

/* Recorded before the checkpoint had a delivery, which this run or an earlier one has added to. */
static bool is_of_official(const fmt_tape *t, const eng_weights *w)
{
    const char *theirs = fmt_json_text(json_object_get(fmt_tape_head(t), "identity"), "checkpoint");
    return strcmp(theirs, eng_weights_official_identity(w)) == 0;
}

err_code eng_calibration_open(const char *path, const eng_weights *w, eng_calibration **out, err *e)
{
    *out = NULL;
    eng_calibration *c = mem_alloc(1, sizeof *c);
    if (!c) return err_set(e, ERR_NOMEM, "%s: no memory to open it", path);
    err_code rc = fmt_tape_open(path, &c->tape, e);
    if (rc == ERR_OK && !fmt_tape_finished(c->tape))
        rc = err_set(e, ERR_INPUT, "%s: is not finished, wanted a whole tape", path);
    if (rc == ERR_OK && !is_of_official(c->tape, w))
        rc = eng_identity_check(json_object_get(fmt_tape_head(c->tape), "identity"), w, e);
    if (rc == ERR_OK) rc = identify(c, e);
    if (rc == ERR_OK) *out = c;
    else eng_calibration_close(c);
    return rc;
}

void eng_calibration_close(eng_calibration *c)
{
    if (!c) return;
    if (c->tape) fmt_tape_close(c->tape);
    free(c);
}

const char *eng_calibration_id(const eng_calibration *c) { return c->id; }

/* ---- rows ---- */

/* Rows that grow. */
typedef struct rows {
    float *x;
    size_t capacity; /* floats */
    int64_t n;
    int32_t k;
} rows;

static err_code read_record(const fmt_tape *t, int64_t at, fmt_tape_record *r, void **data, err *e)
{
    fmt_tape_at(t, (size_t)at, r);
    *data = mem_alloc(r->raw_bytes ? (size_t)r->raw_bytes : 1, 1);
    if (!*data) return err_set(e, ERR_NOMEM, "%s: no memory for %s", fmt_tape_path(t), r->key.name);
    err_code rc = fmt_tape_get(t, (size_t)at, *data, r->raw_bytes, e);
    if (rc != ERR_OK) {
        free(*data);
        *data = NULL;
    }
    return rc;
}

/* The ids that say which of a value's rows went to which expert; NULL: all rows are wanted. */
static err_code read_ids(const fmt_tape *t, const fmt_tape_key *of, int32_t stage, int64_t wanted, int32_t **out, err *e)
{
    char name[FMT_TAPE_NAME_BYTES];
    fmt_tape_record r;
    snprintf(name, sizeof name, "s%d.ffn.ids", stage);
    const fmt_tape_key key = { of->round, of->slot, of->rank, name };
    const int64_t at = fmt_tape_find(t, &key);
    if (at < 0) return err_set(e, ERR_INPUT, "%s: round %d has no %s", fmt_tape_path(t), of->round, name);
    TRY(read_record(t, at, &r, (void **)out, e));
    if (r.tensor.dtype == FMT_DTYPE_I32 && fmt_tensor_elems(&r.tensor) == wanted) return ERR_OK;
    free(*out);
    *out = NULL;
    return err_set(e, ERR_INPUT, "%s: round %d: %s has another shape than its rows", fmt_tape_path(t), of->round, name);
}

/* One rank's part, [n, width], of rows that lie in x from row first on, at column `column`. */
static void place_part(rows *to, int64_t first, const bf16 *from, int64_t n, int64_t width, int64_t column,
                       const int32_t *ids, int32_t expert)
{
    int64_t at = first;
    for (int64_t i = 0; i < n; i++) {
        if (ids && ids[i] != expert) continue;
        float *row = to->x + at++ * to->k + column;
        for (int64_t j = 0; j < width; j++) row[j] = f32_from_bf16(from[i * width + j]);
    }
}

/* A value of rank 0 and its other ranks' parts. */
static err_code add_value(const eng_calibration *c, int64_t at, int32_t stage, int32_t expert, rows *to, err *e)
{
    fmt_tape_record first;
    fmt_tape_at(c->tape, (size_t)at, &first);
    const int64_t last = first.tensor.ndim ? first.tensor.shape[first.tensor.ndim - 1] : 0;
    if (first.tensor.dtype != FMT_DTYPE_BF16 || last == 0) return ERR_OK;
    const int64_t width0 = first.tensor.ndim > 0 ? last : 1, n = fmt_tensor_elems(&first.tensor) / width0;
    int32_t *ids = NULL;
    int64_t taken = n, column = 0;
    err_code rc = ERR_OK;
    if (expert >= 0) {
        TRY(read_ids(c->tape, &first.key, stage, n, &ids, e));
        taken = 0;
        for (int64_t i = 0; i < n; i++) taken += ids[i] == expert;
    }
    void *array = to->x;
    if (!mem_grow(&array, &to->capacity, (size_t)((to->n + taken) * to->k), sizeof *to->x)) {
        rc = err_set(e, ERR_NOMEM, "%s: no memory for the rows of %s", fmt_tape_path(c->tape), first.key.name);
        goto out;
    }
    to->x = array;
    for (int32_t rank = 0; rank < first.n_ranks && column < to->k; rank++) {
        fmt_tape_key key = first.key;
        fmt_tape_record r;
        void *data;
        if (rank > 0) key.rank = rank;
        const int64_t part = rank == 0 ? at : fmt_tape_find(c->tape, &key);
        if (part < 0) break;
        rc = read_record(c->tape, part, &r, &data, e);
        if (rc != ERR_OK) goto out;
        const int64_t width = r.tensor.shape[r.tensor.ndim - 1];
        if (column + width <= to->k && width > 0 && fmt_tensor_elems(&r.tensor) == n * width)
            place_part(to, to->n, data, n, width, column, ids, expert);
        free(data);
        column += width;
        if (r.place != FMT_PLACE_SHARDED) break;
    }
    if (column == to->k) to->n += taken;
    else rc = err_set(e, ERR_INPUT, "%s: round %d: %s has %" PRId64 " columns, wanted %d", fmt_tape_path(c->tape),
                      first.key.round, first.key.name, column, to->k);
out:
    free(ids);
    return rc;
}

err_code eng_calibration_rows(const eng_calibration *c, eng_wid id, int32_t stage, int32_t expert, float **x, int64_t *n,
                              err *e)
{
    const struct source *s = &SOURCES[id];
    err_code rc = ERR_OK;
    rows to = { .k = 0 };
    *x = NULL;
    *n = 0;
    if (!s->name[0]) return ERR_OK;
    if (id != ENG_W_EXPERT_W2) expert = -1;
    for (size_t i = 0; i < fmt_tape_count(c->tape) && rc == ERR_OK && to.n < ENG_CALIBRATION_ROWS; i++) {
        fmt_tape_record r;
        fmt_tape_at(c->tape, i, &r);
        if (r.tier != FMT_TIER_TENSOR || r.key.rank > 0 || r.tensor.ndim < 2) continue;
        if (!is_source(r.key.name, s->name[0], stage) &&
            !(s->name[1] && is_source(r.key.name, s->name[1], stage)))
            continue;
        const int64_t width = r.tensor.shape[r.tensor.ndim - 1];
        if (to.k == 0) to.k = (int32_t)(r.place == FMT_PLACE_SHARDED ? width * r.n_ranks : width); /* cuts are even */
        rc = add_value(c, (int64_t)i, stage, expert, &to, e);
    }
    if (rc == ERR_OK && to.n > 0) {
        *x = to.x;
        *n = to.n;
        return ERR_OK;
    }
    free(to.x);
    return rc;
}
