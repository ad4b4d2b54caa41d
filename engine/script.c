#include "engine/script.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "base/mem.h"
#include "engine/engine.h"

/* What a tensor of a script is. The order is that of a round: inserts come before the draft. */
typedef enum part { TAPS, POS, DRAFT_SLOTS, DRAFT_ANCHOR, DRAFT_POS, DRAFT_N_OUT, PART_COUNT } part;
static const char *const PART_WORDS[PART_COUNT] = { "taps", "pos", "draft.slots", "draft.anchor", "draft.pos",
                                                    "draft.n_out" };

/* One input tensor, its name taken apart. */
typedef struct item {
    int32_t round, slot; /* slot -1: of the draft */
    part part;
    const fmt_safetensors_entry *entry;
} item;

/* A slot and what has been inserted into it so far. */
typedef struct slot_state {
    int32_t slot, dense; /* dense -1: not used yet */
    int32_t first, last; /* positions; last -1: none */
} slot_state;

struct eng_script {
    fmt_safetensors *file;
    const char *path;
    eng_round *rounds;         /* [n_rounds] */
    eng_insert_event *inserts; /* of all rounds, in order */
    slot_state *slots;         /* [n_slots] ascending */
    int32_t n_rounds, n_slots;
    size_t n_inserts;
    void **copies;             /* [n_copies] of tensors that lie unaligned in the file */
    size_t n_copies;
};

/* Positions p + 1 .. p + block of a draft must be int32_t too. */
enum { POS_MAX = INT32_MAX - ENG_BLOCK_MAX };

bool eng_positions_follow(int32_t last, const int32_t *pos, int32_t rows, int32_t *bad_row)
{
    for (int32_t i = 0; i < rows; i++) {
        int32_t before = i ? pos[i - 1] : last;
        if (pos[i] >= 0 && pos[i] <= POS_MAX && (before < 0 || pos[i] == before + 1)) continue;
        *bad_row = i;
        return false;
    }
    return true;
}

/* ---- names ---- */

/* A decimal number without sign or leading zero, at *p; *p moves past it. */
static bool take_number(const char **p, int32_t *out)
{
    const char *s = *p;
    int64_t v = 0;
    if (*s < '0' || *s > '9' || (s[0] == '0' && s[1] >= '0' && s[1] <= '9')) return false;
    for (; *s >= '0' && *s <= '9'; s++)
        if ((v = v * 10 + (*s - '0')) > INT32_MAX) return false;
    *p = s;
    *out = (int32_t)v;
    return true;
}

static bool take_word(const char **p, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(*p, word, n) != 0) return false;
    *p += n;
    return true;
}

/* "round.R."; false: not a name of a round. */
static bool take_round(const char **p, int32_t *round)
{
    return take_word(p, "round.") && take_number(p, round) && take_word(p, ".");
}

static bool parse_name(const char *name, item *out)
{
    const char *p = name;
    out->slot = -1;
    if (!take_round(&p, &out->round)) return false;
    int first = DRAFT_SLOTS, end = PART_COUNT;
    if (take_word(&p, "insert.")) {
        if (!take_number(&p, &out->slot) || !take_word(&p, ".")) return false;
        first = TAPS;
        end = DRAFT_SLOTS;
    }
    for (int k = first; k < end; k++)
        if (strcmp(p, PART_WORDS[k]) == 0) {
            out->part = (part)k;
            return true;
        }
    return false;
}

/* An export is a script with more in it: in a file that says it is something else, other values of a round are not ours. */
static bool is_foreign_value(const eng_script *s, const char *name)
{
    const char *format = json_string_value(json_object_get(fmt_safetensors_metadata(s->file), "format"));
    int32_t round;
    return format && strcmp(format, "sparktape-script-1") != 0 && take_round(&name, &round);
}

static int by_order(const void *a, const void *b)
{
    const item *x = a, *y = b;
    bool x_draft = x->slot < 0, y_draft = y->slot < 0;
    if (x->round != y->round) return x->round < y->round ? -1 : 1;
    if (x_draft != y_draft) return x_draft ? 1 : -1;
    if (x->slot != y->slot) return x->slot < y->slot ? -1 : 1;
    return (int)x->part - (int)y->part;
}

/* ---- tensors ---- */

/* The data aligned for its type: a file may hold a tensor at any byte; one that lies badly is copied. */
static err_code aligned_data(eng_script *s, const fmt_safetensors_entry *x, const void **out, err *e)
{
    *out = x->tensor.data;
    if ((uintptr_t)*out % fmt_dtype_bytes(x->tensor.dtype) == 0) return ERR_OK;
    void *copy = x->bytes < SIZE_MAX ? malloc((size_t)x->bytes + 1) : NULL;
    if (!copy) return err_set(e, ERR_NOMEM, "%s: no memory for %" PRIu64 " bytes of %.200s", s->path, x->bytes, x->name);
    *out = memcpy(copy, x->tensor.data, (size_t)x->bytes);
    s->copies[s->n_copies++] = copy;
    return ERR_OK;
}

/* "FILE: round R slot S: what"; slot -1 where none is meant. */
__attribute__((format(printf, 5, 6)))
static err_code refuse(const eng_script *s, int32_t round, int32_t slot, err *e, const char *fmt, ...)
{
    char what[ERR_MSG_BYTES], where[24] = "";
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    if (slot >= 0) snprintf(where, sizeof where, " slot %d", slot);
    return err_set(e, ERR_INPUT, "%s: round %d%s: %s", s->path, round, where, what);
}

/* A list of lo to hi int32. */
static err_code read_ints(eng_script *s, const item *it, int64_t lo, int64_t hi, const int32_t **out, int32_t *n, err *e)
{
    const fmt_tensor *t = &it->entry->tensor;
    const void *data;
    char text[160], wanted[64];
    if (lo == hi) snprintf(wanted, sizeof wanted, "%" PRId64, lo);
    else snprintf(wanted, sizeof wanted, "%" PRId64 " to %" PRId64, lo, hi);
    if (t->dtype != FMT_DTYPE_I32 || t->ndim != 1 || t->shape[0] < lo || t->shape[0] > hi)
        return refuse(s, it->round, it->slot, e, "%s: found %s, wanted I32 [%s]", PART_WORDS[it->part],
                      fmt_tensor_text(t, text, sizeof text), wanted);
    TRY(aligned_data(s, it->entry, &data, e));
    *out = data;
    *n = (int32_t)t->shape[0];
    return ERR_OK;
}

static slot_state *find_slot(const eng_script *s, int32_t slot)
{
    int32_t lo = 0, hi = s->n_slots;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (s->slots[mid].slot < slot) lo = mid + 1;
        else hi = mid;
    }
    return lo < s->n_slots && s->slots[lo].slot == slot ? &s->slots[lo] : NULL;
}

/* ---- inserts ---- */

static err_code check_positions(const eng_script *s, int32_t round, int32_t last, const eng_insert_event *in, err *e)
{
    int32_t bad;
    if (eng_positions_follow(last, in->pos, in->rows, &bad)) return ERR_OK;
    int32_t found = in->pos[bad], before = bad ? in->pos[bad - 1] : last;
    if (found < 0) return refuse(s, round, in->slot, e, "pos[%d]: found %d, wanted no negative position", bad, found);
    if (found > POS_MAX) return refuse(s, round, in->slot, e, "pos[%d]: found %d, wanted at most %d", bad, found, POS_MAX);
    return refuse(s, round, in->slot, e, "pos[%d]: found %d after %d, wanted %d: positions %s", bad, found, before,
                  before + 1, found == before ? "repeat" : found < before ? "go back" : "have a gap");
}

static err_code check_taps(const eng_script *s, int32_t round, const eng_insert_event *in, int64_t width, err *e)
{
    for (int64_t i = 0; i < in->rows * width; i++)
        if ((in->taps[i] & 0x7f80) == 0x7f80)
            return refuse(s, round, in->slot, e, "taps[%" PRId64 "][%" PRId64 "]: found %s, wanted a finite number",
                          i / width, i % width, in->taps[i] & 0x7f ? "NaN" : "an infinity");
    return ERR_OK;
}

/* taps and pos: the two items of an insert, NULL where missing. */
static err_code add_insert(eng_script *s, const eng_config *c, int32_t round, int32_t slot, const item *taps,
                           const item *pos, err *e)
{
    eng_insert_event in = { .slot = slot };
    int64_t width = (int64_t)c->n_taps * c->dim;
    int32_t n_pos;
    const void *data;
    char text[160];
    if (!taps) return refuse(s, round, slot, e, "found pos without taps, wanted both");
    if (!pos) return refuse(s, round, slot, e, "found taps without pos, wanted both");
    const fmt_tensor *t = &taps->entry->tensor;
    if (t->dtype != FMT_DTYPE_BF16 || t->ndim != 2 || t->shape[1] != width || t->shape[0] > INT32_MAX)
        return refuse(s, round, slot, e, "taps: found %s, wanted BF16 [P, %" PRId64 "]",
                      fmt_tensor_text(t, text, sizeof text), width);
    if (t->shape[0] == 0) return refuse(s, round, slot, e, "taps: found P = 0 rows, wanted at least 1");
    in.rows = (int32_t)t->shape[0];
    TRY(read_ints(s, pos, in.rows, in.rows, &in.pos, &n_pos, e));
    TRY(aligned_data(s, taps->entry, &data, e));
    in.taps = data;
    slot_state *state = find_slot(s, slot);
    CHECK(state);
    TRY(check_positions(s, round, state->last, &in, e));
    TRY(check_taps(s, round, &in, width, e));
    if (state->last < 0) state->first = in.pos[0];
    state->last = in.pos[in.rows - 1];
    s->inserts[s->n_inserts++] = in;
    return ERR_OK;
}

/* ---- draft ---- */

static err_code check_draft_slot(const eng_script *s, const eng_config *c, const eng_round *r, int32_t i, err *e)
{
    int32_t slot = r->slots[i], p = r->pos[i], round = r->round;
    const slot_state *state = find_slot(s, slot);
    /* A negative slot has no name of its own in a message. */
    if (slot < 0) return refuse(s, round, -1, e, "draft.slots: found slot %d, wanted no negative one", slot);
    for (int32_t k = 0; k < i; k++)
        if (r->slots[k] == slot) return refuse(s, round, slot, e, "found twice in draft.slots, wanted once");
    if (!state || state->last < 0) return refuse(s, round, slot, e, "found a draft before any insert, wanted rows first");
    if (p != state->last)
        return refuse(s, round, slot, e, "draft.pos: found %d, wanted %d, the last inserted position", p, state->last);
    int32_t oldest = p >= c->window ? p - c->window + 1 : 0;
    if (state->first > oldest)
        return refuse(s, round, slot, e, "draft at %d: found rows from %d on, wanted from %d on", p, state->first, oldest);
    if (r->anchors[i] < 0 || r->anchors[i] >= c->vocab)
        return refuse(s, round, slot, e, "draft.anchor: found %d, wanted 0 to %d", r->anchors[i], c->vocab - 1);
    return ERR_OK;
}

/* parts: the draft's four items by part, NULL where missing. */
static err_code add_draft(eng_script *s, const eng_config *c, const item *const parts[PART_COUNT], eng_round *r, err *e)
{
    const int32_t *n_out;
    int32_t n;
    for (int k = DRAFT_SLOTS; k < PART_COUNT; k++)
        if (!parts[k]) return refuse(s, r->round, -1, e, "found a draft without %s, wanted it", PART_WORDS[k]);
    TRY(read_ints(s, parts[DRAFT_SLOTS], 1, ENG_BATCH_MAX, &r->slots, &r->batch, e));
    TRY(read_ints(s, parts[DRAFT_ANCHOR], r->batch, r->batch, &r->anchors, &n, e));
    TRY(read_ints(s, parts[DRAFT_POS], r->batch, r->batch, &r->pos, &n, e));
    TRY(read_ints(s, parts[DRAFT_N_OUT], 1, 1, &n_out, &n, e));
    for (int32_t i = 0; i < r->batch; i++) TRY(check_draft_slot(s, c, r, i, e));
    if (*n_out < 1 || *n_out > c->block)
        return refuse(s, r->round, r->slots[0], e, "draft.n_out: found %d, wanted 1 to %d", *n_out, c->block);
    r->n_out = *n_out;
    return ERR_OK;
}

/* ---- the whole ---- */

/* Every input of the file, in the order of the rounds. */
static err_code list_items(eng_script *s, item **out, size_t *n, err *e)
{
    size_t count = fmt_safetensors_count(s->file), used = 0;
    item *items = mem_alloc(count, sizeof *items);
    if (!items) return err_set(e, ERR_NOMEM, "%s: no memory for its table", s->path);
    *out = items;
    for (size_t i = 0; i < count; i++) {
        const fmt_safetensors_entry *x = fmt_safetensors_at(s->file, i);
        items[used].entry = x;
        if (parse_name(x->name, &items[used])) used++;
        else if (!is_foreign_value(s, x->name))
            return err_set(e, ERR_INPUT, "%s: tensor %.200s is unknown: wanted round.R.insert.SLOT.{taps,pos} or "
                           "round.R.draft.{slots,anchor,pos,n_out}", s->path, x->name);
    }
    if (used == 0) return err_set(e, ERR_INPUT, "%s: found no rounds, wanted at least one", s->path);
    qsort(items, used, sizeof *items, by_order);
    *n = used;
    return ERR_OK;
}

static int by_slot(const void *a, const void *b)
{
    int32_t x = ((const slot_state *)a)->slot, y = ((const slot_state *)b)->slot;
    return x < y ? -1 : x > y;
}

/* The distinct slots of all inserts, ascending. A draft of any other slot is refused later. */
static void list_slots(eng_script *s, const item *items, size_t n)
{
    size_t used = 0, kept = 0;
    for (size_t i = 0; i < n; i++)
        if (items[i].slot >= 0) s->slots[used++] = (slot_state){ .slot = items[i].slot, .dense = -1, .last = -1 };
    qsort(s->slots, used, sizeof *s->slots, by_slot);
    for (size_t i = 0; i < used; i++)
        if (kept == 0 || s->slots[kept - 1].slot != s->slots[i].slot) s->slots[kept++] = s->slots[i];
    s->n_slots = (int32_t)kept;
}

/* Reads the items of one round, items[*at] on, and moves *at past them. */
static err_code add_round(eng_script *s, const eng_config *c, const item *items, size_t n, size_t *at, int32_t *n_dense,
                          err *e)
{
    eng_round *r = &s->rounds[s->n_rounds++];
    *r = (eng_round){ .round = items[*at].round, .inserts = s->inserts + s->n_inserts };
    while (*at < n && items[*at].round == r->round) {
        const item *parts[PART_COUNT] = { NULL };
        int32_t slot = items[*at].slot;
        for (; *at < n && items[*at].round == r->round && items[*at].slot == slot; ++*at)
            parts[items[*at].part] = &items[*at];
        if (slot < 0) {
            TRY(add_draft(s, c, parts, r, e));
            continue;
        }
        TRY(add_insert(s, c, r->round, slot, parts[TAPS], parts[POS], e));
        r->n_inserts++;
        slot_state *state = find_slot(s, slot);
        if (state->dense < 0) state->dense = (*n_dense)++;
    }
    return ERR_OK;
}

static err_code fill(eng_script *s, const eng_config *c, item **items, err *e)
{
    size_t n = 0, at = 0;
    int32_t n_dense = 0;
    TRY(list_items(s, items, &n, e));
    if (n > INT32_MAX) return err_set(e, ERR_INPUT, "%s: found %zu tensors, wanted at most %d", s->path, n, INT32_MAX);
    s->rounds = mem_alloc(n, sizeof *s->rounds);
    s->inserts = mem_alloc(n, sizeof *s->inserts);
    s->slots = mem_alloc(n, sizeof *s->slots);
    s->copies = mem_alloc(n, sizeof *s->copies);
    if (!s->rounds || !s->inserts || !s->slots || !s->copies)
        return err_set(e, ERR_NOMEM, "%s: no memory for its rounds", s->path);
    list_slots(s, *items, n);
    while (at < n) TRY(add_round(s, c, *items, n, &at, &n_dense, e));
    return ERR_OK;
}

err_code eng_script_open(const char *path, const eng_config *c, eng_script **out, err *e)
{
    item *items = NULL;
    *out = NULL;
    eng_script *s = mem_alloc(1, sizeof *s);
    if (!s) return err_set(e, ERR_NOMEM, "%s: no memory to open it", path);
    err_code rc = fmt_safetensors_open(path, &s->file, e);
    if (rc == ERR_OK) {
        s->path = fmt_safetensors_path(s->file);
        rc = fill(s, c, &items, e);
    }
    free(items);
    if (rc == ERR_OK) *out = s;
    else eng_script_close(s);
    return rc;
}

void eng_script_close(eng_script *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n_copies; i++) free(s->copies[i]);
    free(s->copies);
    free(s->slots);
    free(s->inserts);
    free(s->rounds);
    fmt_safetensors_close(s->file);
    free(s);
}

int32_t eng_script_rounds(const eng_script *s) { return s->n_rounds; }

const eng_round *eng_script_at(const eng_script *s, int32_t i)
{
    CHECK(i >= 0 && i < s->n_rounds);
    return &s->rounds[i];
}

int32_t eng_script_slots(const eng_script *s) { return s->n_slots; }

bool eng_script_synthetic(const eng_script *s)
{
    const char *traffic = json_string_value(json_object_get(fmt_safetensors_metadata(s->file), "traffic"));
    return traffic && strcmp(traffic, "synthetic") == 0;
}

int32_t eng_script_dense(const eng_script *s, int32_t slot)
{
    const slot_state *state = find_slot(s, slot);
    CHECK(state);
    return state->dense;
}
