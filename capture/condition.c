#include "capture/condition.h"

#include <math.h>

#include "base/mem.h"
#include "capture/joined.h"
#include "capture/redact.h"
#include "kernels/digest.h"

typedef enum when_kind { WHEN_NAN, WHEN_RANGE, WHEN_DIFFERS, WHEN_ACCEPTANCE } when_kind;

enum {
    PATH_MAX_BYTES = 4096,
    DRAFTS_MAX = 1024, /* requests whose drafts nothing has told of yet; the oldest are forgotten */
};

typedef struct condition {
    when_kind kind;
    char *text;              /* the item */
    const char *pattern;     /* into text; NULL: all names */
    double lo, hi;           /* range; lo: acceptance */
    fmt_tape *tape;          /* differs */
    json_t *found;           /* in this round; NULL: nothing */
    uint64_t looked, fired, passed_over;
    int32_t first;
} condition;

/* A request's last draft. */
typedef struct drafted { int32_t slot, round, pos, n_out, last; /* last: row inserted since, pos: none */ } drafted;

struct cap_conditions {
    const cap_plan *plan;
    condition *condition;
    int n;
    bool acceptance; /* some condition needs it */
    uint64_t taps;
    drafted draft[DRAFTS_MAX];
    size_t n_drafts, oldest;
};

/* A value as it is kept: with its bytes, or with the digest of these. */
typedef struct seen {
    fmt_tape_key key;
    fmt_place place;
    int32_t n_ranks;
    bool hidden;       /* goes on the tape with its ids replaced */
    fmt_tensor tensor; /* data NULL: digest and stats are known instead */
    uint64_t digest;
    fmt_stats stats;
} seen;

/* ---- items ---- */

static bool parse_number(const char *text, size_t n, double *out)
{
    char number[64], *end;
    if (n == 0 || n >= sizeof number) return false;
    memcpy(number, text, n);
    number[n] = 0;
    *out = strtod(number, &end);
    return *end == 0 && number[0] != ' ' && !isnan(*out);
}

/* The item's own text is kept by the caller. path [PATH_MAX_BYTES]: the tape's, of differs. */
static err_code parse(const char *item, condition *out, char *path, err *e)
{
    const char *at = strrchr(item, '@'), *colon = strchr(item, ':'), *end = at ? at : item + strlen(item);
    if (colon && colon > end) colon = NULL;
    const char *arg = colon ? colon + 1 : end, *dots = strstr(arg, "..");
    size_t word = (size_t)((colon ? colon : end) - item), n = (size_t)(end - arg);
    *out = (condition){ .pattern = at ? at + 1 : NULL };
    if (at && !at[1]) return err_set(e, ERR_ARG, "--when %s: found no pattern behind @, wanted one", item);
    if (word == 3 && memcmp(item, "nan", 3) == 0 && !colon) return ERR_OK;
    if (word == 5 && memcmp(item, "range", 5) == 0) {
        out->kind = WHEN_RANGE;
        bool fine = dots && dots < end && parse_number(arg, (size_t)(dots - arg), &out->lo) &&
                    parse_number(dots + 2, (size_t)(end - dots - 2), &out->hi) && out->lo <= out->hi;
        return fine ? ERR_OK : err_set(e, ERR_ARG, "--when %s: wanted range:LO..HI, two numbers in order", item);
    }
    if (word == 7 && memcmp(item, "differs", 7) == 0) {
        out->kind = WHEN_DIFFERS;
        if (n == 0 || n >= PATH_MAX_BYTES) return err_set(e, ERR_ARG, "--when %s: wanted differs:TAPE", item);
        memcpy(path, arg, n);
        path[n] = 0;
        return ERR_OK;
    }
    if (word == 10 && memcmp(item, "acceptance", 10) == 0) {
        out->kind = WHEN_ACCEPTANCE;
        bool fine = !at && parse_number(arg, n, &out->lo) && out->lo > 0 && out->lo <= 1;
        return fine ? ERR_OK : err_set(e, ERR_ARG, "--when %s: wanted acceptance:X, X above 0 and at most 1", item);
    }
    return err_set(e, ERR_ARG, "--when: found '%s', wanted nan, range:LO..HI, differs:TAPE (each with @PATTERN if wanted) "
                               "or acceptance:X", item);
}

err_code cap_when_check(const cli_list *when, const char *out, err *e)
{
    char path[PATH_MAX_BYTES];
    condition c;
    for (int i = 0; when && i < when->count; i++) {
        TRY(parse(when->item[i], &c, path, e));
        if (c.kind == WHEN_DIFFERS && out) TRY(cli_keep_off("-o", out, path, e));
    }
    return ERR_OK;
}

static bool is_float(fmt_dtype d)
{
#define X(name, text, bytes, is_float) is_float,
    static const bool FLOAT[] = { FMT_DTYPE_LIST(X) };
#undef X
    return FLOAT[d];
}

/* Whether the condition is about a value of that name and dtype. */
static bool is_about(const condition *c, const char *name, fmt_dtype dtype)
{
    if (c->kind == WHEN_ACCEPTANCE || (c->kind != WHEN_DIFFERS && !is_float(dtype))) return false;
    return !c->pattern || cli_match(c->pattern, name);
}

static bool is_any_about(const cap_conditions *c, const char *name, fmt_dtype dtype)
{
    for (int i = 0; i < c->n; i++)
        if (is_about(&c->condition[i], name, dtype)) return true;
    return false;
}

static bool matches_something(const condition *c, const cap_plan *plan)
{
    if (c->kind == WHEN_ACCEPTANCE) return true;
    for (int s = 0; s < CAP_STEPS; s++)
        for (int32_t v = 0; v < plan->program[s]->n_values; v++) {
            const eng_value *value = &plan->program[s]->value[v];
            const cap_armed *a = &plan->armed[s][v];
            char top[CAP_TOP_NAME];
            cap_top_name(value, top);
            if (a->tier != CAP_TIER_OFF && is_about(c, value->name, value->dtype)) return true;
            if (a->top_tier != CAP_TIER_OFF && is_about(c, top, FMT_DTYPE_F32)) return true;
        }
    return false;
}

static err_code open_condition(const char *item, const cap_plan *plan, condition *out, err *e)
{
    char path[PATH_MAX_BYTES];
    TRY(parse(item, out, path, e));
    ptrdiff_t pattern_at = out->pattern ? out->pattern - item : 0;
    out->text = mem_strdup(item);
    if (!out->text) return err_set(e, ERR_NOMEM, "--when %s: no memory", item);
    if (out->pattern) out->pattern = out->text + pattern_at;
    if (!matches_something(out, plan))
        return err_set(e, ERR_ARG, "--when %s: found nothing of such a name that is kept, see --level and --tap", item);
    if (out->kind != WHEN_DIFFERS) return ERR_OK;
    if (fmt_tape_open(path, &out->tape, e) != ERR_OK) return err_wrap(e, "--when %s", item);
    char what[300];
    snprintf(what, sizeof what, "--when %s", item);
    TRY(cap_check_whole(what, out->tape, e));
    if (cap_redact_key_of(out->tape))
        return err_set(e, ERR_INPUT, "--when %s: its token ids are redacted, wanted a tape with the real ones", item);
    return ERR_OK;
}

err_code cap_check_whole(const char *what, const fmt_tape *t, err *e)
{
    const fmt_tape_fault *faults;
    size_t n = fmt_tape_damage(t, &faults);
    if (n)
        return err_set(e, ERR_INPUT, "%s: is damaged at %zu places, first: %s; wanted a sound tape, see sparktape recover",
                       what, n, faults[0].what);
    if (!fmt_tape_finished(t))
        return err_set(e, ERR_INPUT, "%s: is unfinished, wanted a finished tape, see sparktape recover", what);
    return ERR_OK;
}

err_code cap_conditions_open(const cli_list *when, const cap_plan *plan, cap_conditions **out, err *e)
{
    *out = NULL;
    int n = when ? when->count : 0;
    cap_conditions *c = mem_alloc(1, sizeof *c);
    if (!c) return err_set(e, ERR_NOMEM, "no memory for conditions");
    c->plan = plan;
    c->condition = mem_alloc((size_t)n + 1, sizeof *c->condition);
    err_code rc = c->condition ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for conditions");
    for (int i = 0; i < n && rc == ERR_OK; i++) {
        rc = open_condition(when->item[i], plan, &c->condition[i], e);
        c->n = i + 1;
        c->acceptance = c->acceptance || c->condition[i].kind == WHEN_ACCEPTANCE;
    }
    if (rc == ERR_OK) *out = c;
    else cap_conditions_close(c);
    return rc;
}

void cap_conditions_close(cap_conditions *c)
{
    if (!c) return;
    for (int i = 0; i < c->n; i++) {
        fmt_tape_close(c->condition[i].tape);
        json_decref(c->condition[i].found);
        free(c->condition[i].text);
    }
    free(c->condition);
    free(c);
}

/* ---- a value ---- */

/* JSON has no infinity. */
static json_t *real_json(double x) { return isfinite(x) ? json_real(x) : json_string(x > 0 ? "inf" : "-inf"); }

static json_t *hex_json(uint64_t x) { return json_sprintf("%016llx", (unsigned long long)x); }

/* Notes the round's first finding. more: what was found there, stolen. */
static void note(condition *c, const seen *s, json_t *more)
{
    c->found = json_pack("{s:s, s:s, s:s, s:i}", "event", "trigger", "when", c->text, "value", s->key.name, "rank",
                         (int)s->key.rank);
    if (s->key.slot != FMT_TAPE_NO_SLOT) json_object_set_new(c->found, "slot", json_integer(s->key.slot));
    json_object_update(c->found, more);
    json_decref(more);
}

/* Whether the value's hash is not its record's, and both. false too where they do not compare. */
static bool differs(condition *c, const seen *s, json_t **more)
{
    int64_t i = fmt_tape_find(c->tape, &s->key);
    fmt_tape_record r;
    if (i < 0 || s->hidden) return false; /* its true hash would tell the ids */
    fmt_tape_at(c->tape, (size_t)i, &r);
    if (s->place != FMT_PLACE_REPLICATED && r.n_ranks != s->n_ranks) { /* another share of the value */
        c->passed_over++;
        return false;
    }
    bool alike = r.tensor.dtype == s->tensor.dtype && r.tensor.ndim == s->tensor.ndim &&
                 memcmp(r.tensor.shape, s->tensor.shape, sizeof r.tensor.shape) == 0;
    uint64_t found = s->digest, wanted = r.digest;
    if (alike && r.has_digest && s->tensor.data) {
        fmt_stats stats;
        krn_digest_ref(&s->tensor, NULL, &found, &stats);
    } else if (alike && !r.has_digest && s->tensor.data) {
        found = fmt_hash64(s->tensor.data, fmt_tensor_bytes(&s->tensor));
        wanted = r.hash;
    } else if (alike && !r.has_digest) { /* only a digest here: the record's is made of its bytes */
        cap_value v = { 0 };
        fmt_stats stats;
        bool there = cap_record_get(c->tape, (size_t)i, &v, NULL) == ERR_OK;
        if (there) krn_digest_ref(&v.tensor, NULL, &wanted, &stats);
        cap_value_fini(&v);
        if (!there) {
            c->passed_over++;
            return false;
        }
    }
    c->looked++;
    if (alike && found == wanted) return false;
    if (!c->found)
        *more = alike ? json_pack("{s:o, s:o}", "found", hex_json(found), "wanted", hex_json(wanted))
                      : json_pack("{s:s}", "found", "another shape or dtype");
    return true;
}

static void look_at(cap_conditions *all, seen *s)
{
    bool known = s->tensor.data == NULL; /* the statistics */
    if (fmt_tensor_elems(&s->tensor) == 0) return; /* a rank without columns */
    for (int i = 0; i < all->n; i++) {
        condition *c = &all->condition[i];
        json_t *more = NULL;
        bool holds;
        if (!is_about(c, s->key.name, s->tensor.dtype)) continue;
        if (c->kind == WHEN_DIFFERS) holds = differs(c, s, &more);
        else {
            if (!known) fmt_stats_of(&s->tensor, &s->stats);
            known = true;
            c->looked++;
            holds = c->kind == WHEN_NAN ? s->stats.n_nan || s->stats.n_inf : s->stats.min < c->lo || s->stats.max > c->hi;
        }
        if (!holds || c->found) continue;
        if (c->kind == WHEN_NAN)
            more = json_pack("{s:I, s:I}", "nan", (json_int_t)s->stats.n_nan, "inf", (json_int_t)s->stats.n_inf);
        if (c->kind == WHEN_RANGE)
            more = json_pack("{s:o, s:o}", "min", real_json(s->stats.min), "max", real_json(s->stats.max));
        note(c, s, more);
    }
}

/* ---- a part ---- */

/* What the shot keeps of value v: on a rank, or of batch entry b's window. */
static void look_at_kept(cap_conditions *c, const cap_part *p, int32_t v, int32_t rank, int32_t b)
{
    const eng_program *program = c->plan->program[p->step];
    const eng_value *value = &program->value[v];
    const cap_armed *a = &c->plan->armed[p->step][v];
    if (!is_any_about(c, value->name, value->dtype)) return;
    int32_t slot = value->state ? p->slots[b] : p->step == ENG_STEP_INSERT ? p->slot : FMT_TAPE_NO_SLOT;
    seen s = { .key = { p->item.round, slot, value->state ? 0 : rank, value->name }, .place = value->place,
               .n_ranks = value->state ? 1 : c->plan->n_ranks, .hidden = a->hide != CAP_HIDE_NOTHING };
    if (a->tier == FMT_TIER_TENSOR || s.hidden) eng_shot_tensor(p->shot, rank, v, b, &s.tensor);
    else {
        const uint64_t *rows;
        uint64_t n_rows;
        int64_t shape[FMT_DIMS_MAX];
        eng_value_shape(program, v, eng_shot_extents(p->shot), rank, c->plan->n_ranks, shape);
        if (value->state) {
            shape[0] = p->pos[b] + 1 < program->config.window ? p->pos[b] + 1 : program->config.window;
            shape[1] = program->config.head_dim;
        }
        s.tensor = fmt_tensor_make(value->dtype, NULL, value->state ? 2 : value->ndim, shape);
        eng_shot_digest(p->shot, rank, v, b, &rows, &n_rows, &s.digest, &s.stats);
    }
    look_at(c, &s);
}

static void look_at_top(cap_conditions *c, const cap_part *p, int32_t v)
{
    const eng_program *program = c->plan->program[p->step];
    const float *values;
    const int32_t *ids;
    int64_t rows, shape[FMT_DIMS_MAX];
    char name[CAP_TOP_NAME];
    cap_top_name(&program->value[v], name);
    if (!is_any_about(c, name, FMT_DTYPE_F32)) return;
    int32_t k = eng_shot_top(p->shot, v, &values, &ids, &rows);
    eng_value_shape(program, v, eng_shot_extents(p->shot), 0, c->plan->n_ranks, shape);
    shape[program->value[v].ndim - 1] = k;
    seen s = { .key = { p->item.round, FMT_TAPE_NO_SLOT, 0, name }, .n_ranks = 1 };
    s.tensor = fmt_tensor_make(FMT_DTYPE_F32, values, program->value[v].ndim, shape);
    look_at(c, &s);
}

/* ---- acceptance ---- */

static drafted *find_draft(cap_conditions *c, int32_t slot)
{
    for (size_t i = 0; i < c->n_drafts; i++)
        if (c->draft[i].slot == slot) return &c->draft[i];
    return NULL;
}

/* Judges the drafts that inserts have told of. */
static void settle(cap_conditions *all)
{
    for (size_t i = 0; i < all->n_drafts; i++) {
        drafted *d = &all->draft[i];
        if (d->slot == FMT_TAPE_NO_SLOT || d->last <= d->pos) continue;
        int32_t accepted = d->last - d->pos - 1 < d->n_out ? d->last - d->pos - 1 : d->n_out;
        for (int k = 0; k < all->n; k++) {
            condition *c = &all->condition[k];
            if (c->kind != WHEN_ACCEPTANCE) continue;
            c->looked++;
            if (c->found || accepted >= c->lo * d->n_out) continue;
            c->found = json_pack("{s:s, s:s, s:i, s:i, s:i, s:i}", "event", "trigger", "when", c->text, "slot",
                                 (int)d->slot, "drafted", (int)d->round, "accepted", (int)accepted, "of", (int)d->n_out);
        }
        d->slot = FMT_TAPE_NO_SLOT;
    }
}

static void add_draft(cap_conditions *c, const cap_part *p, int32_t b)
{
    drafted *d = find_draft(c, p->slots[b]);
    if (!d) d = find_draft(c, FMT_TAPE_NO_SLOT);
    if (!d && c->n_drafts < DRAFTS_MAX) d = &c->draft[c->n_drafts++];
    if (!d) d = &c->draft[c->oldest++ % DRAFTS_MAX];
    *d = (drafted){ p->slots[b], p->item.round, p->pos[b], p->n_out, p->pos[b] };
}

static void follow(cap_conditions *c, const cap_part *p)
{
    if (p->step == ENG_STEP_INSERT) {
        drafted *d = find_draft(c, p->slot);
        if (d && p->pos[0] == d->last + 1) d->last = p->pos[p->rows - 1];
        else if (d) d->slot = FMT_TAPE_NO_SLOT; /* a round of its between was not captured: nothing is known */
        return;
    }
    settle(c); /* the round's inserts were all before this */
    for (int32_t b = 0; b < p->batch; b++) add_draft(c, p, b);
}

/* ---- rounds ---- */

err_code cap_conditions_look(cap_conditions *c, cap_part *p, err *e)
{
    const cap_plan *plan = c->plan;
    const eng_program *program = plan->program[p->step];
    TRY(eng_shot_wait(p->shot, e));
    for (int32_t v = 0; v < program->n_values; v++) {
        const cap_armed *a = &plan->armed[p->step][v];
        bool state = program->value[v].state;
        if (!cap_is_armed(a) || !eng_shot_has(p->shot, v)) continue;
        c->taps += state ? (uint64_t)p->batch : 1;
        if (a->top_tier != CAP_TIER_OFF) look_at_top(c, p, v);
        if (a->tier == CAP_TIER_OFF) continue;
        for (int32_t rank = plan->first_rank; rank < (state ? plan->first_rank + 1 : plan->end_rank); rank++)
            for (int32_t b = 0; b < (state ? p->batch : 1); b++) look_at_kept(c, p, v, rank, b);
    }
    if (c->acceptance) follow(c, p);
    return ERR_OK;
}

err_code cap_conditions_end_round(cap_conditions *all, int32_t round, json_t *events, err *e)
{
    settle(all);
    for (int i = 0; i < all->n; i++) {
        condition *c = &all->condition[i];
        if (!c->found) continue;
        if (c->fired++ == 0) c->first = round;
        json_t *found = c->found;
        c->found = NULL;
        if (json_array_append_new(events, found) != 0) return err_set(e, ERR_NOMEM, "no memory for an event");
    }
    return ERR_OK;
}

json_t *cap_conditions_json(const cap_conditions *all)
{
    json_t *out = json_array();
    for (int i = 0; i < all->n; i++) {
        const condition *c = &all->condition[i];
        json_t *one = json_pack("{s:s, s:I, s:I}", "when", c->text, "looked", (json_int_t)c->looked, "fired",
                                (json_int_t)c->fired);
        if (c->fired) json_object_set_new(one, "first", json_integer(c->first));
        if (c->kind == WHEN_DIFFERS)
            json_object_set_new(one, "passed_over", json_integer((json_int_t)c->passed_over));
        json_array_append_new(out, one);
    }
    return out;
}

void cap_conditions_reset(cap_conditions *c)
{
    c->taps = 0;
    for (int i = 0; i < c->n; i++) c->condition[i].looked = c->condition[i].fired = c->condition[i].passed_over = 0;
}

uint64_t cap_conditions_taps(const cap_conditions *c) { return c->taps; }
