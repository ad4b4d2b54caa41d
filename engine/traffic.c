#include "engine/traffic.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/noise.h"
#include "formats/number.h"
#include "formats/safetensors.h"

enum { BATCH_MAX = 4, NAME_BYTES = 64, ARRIVALS = 2 /* new requests a round */ };

static const float TAP_STD = 30.0f;
static const float TAP_MAX = 280576.0f; /* the largest tap ever captured; a bf16 value */
static const double OUTLIER_EXP_MIN = 1.0, OUTLIER_EXP_MAX = 3.9; /* outlier channels are 10^x times wider */

/* What happens in one round: rows[i] new rows for slot[i]; the first `batch` of them are drafted. */
typedef struct event { int32_t slot, first_pos, rows; } event;
typedef struct round_plan {
    int32_t n_inserts, batch, n_out;
    event insert[BATCH_MAX + ENG_TRAFFIC_SLOTS_MAX];
} round_plan;

typedef struct schedule {
    const eng_config *config;
    uint64_t key;
    int32_t rounds, slots;
    int32_t cursor;                         /* next slot to draft */
    int32_t next[ENG_TRAFFIC_SLOTS_MAX];    /* a slot's next position */
} schedule;

static int32_t first_prompt(const schedule *s, int32_t slot)
{
    int32_t w = s->config->window;
    const int32_t rows[8] = { 2, w - 1, w / 2, 2 * w + 44, 1, w, w + 1, 3 };
    return rows[slot % 8] > 0 ? rows[slot % 8] : 1;
}

static int32_t accepted_rows(const schedule *s, int32_t round, int32_t slot)
{
    if (slot == 1 && s->next[slot] <= s->config->window + 1) return 1;
    uint64_t bits = eng_noise_bits(s->key, (uint64_t)round * ENG_TRAFFIC_SLOTS_MAX + (uint64_t)slot);
    return 1 + (int32_t)(bits % (uint64_t)(s->config->block + 1));
}

static void add_insert(schedule *s, round_plan *p, int32_t slot, int32_t rows)
{
    p->insert[p->n_inserts++] = (event){ slot, s->next[slot], rows };
    s->next[slot] += rows;
}

static int32_t arrived(const schedule *s, int32_t round)
{
    bool last = round == s->rounds - 1; /* whoever has not come yet comes now */
    int64_t n = last ? s->slots : ARRIVALS * ((int64_t)round + 1);
    return n < s->slots ? (int32_t)n : s->slots;
}

/* Rounds must be asked for in order: the schedule keeps the slots' positions. */
static void plan_round(schedule *s, int32_t round, round_plan *p)
{
    int32_t before = round ? arrived(s, round - 1) : 0, live = arrived(s, round);
    int32_t most = live < BATCH_MAX ? live : BATCH_MAX;
    /* Full steps most of the time, a smaller one now and then. */
    uint64_t bits = eng_noise_bits(~s->key, (uint64_t)round);
    p->batch = round > 3 && bits % 3 == 0 ? 1 + (int32_t)(bits >> 8) % most : most;
    if (p->batch < 1) p->batch = 1;
    p->n_out = round % 2 && s->config->block > 1 ? s->config->block - 1 : s->config->block;
    p->n_inserts = 0;
    for (int32_t i = 0; i < p->batch; i++) {
        int32_t slot = (s->cursor + i) % live;
        bool is_new = slot >= before && s->next[slot] == 0;
        add_insert(s, p, slot, is_new ? first_prompt(s, slot) : accepted_rows(s, round, slot));
    }
    s->cursor = (s->cursor + p->batch) % live;
    for (int32_t slot = before; slot < live; slot++) /* new ones that are not drafted yet */
        if (s->next[slot] == 0) add_insert(s, p, slot, first_prompt(s, slot));
}

static schedule schedule_make(const eng_config *c, int32_t rounds, int32_t slots, uint64_t seed)
{
    return (schedule){ .config = c, .rounds = rounds, .slots = slots, .key = eng_noise_key(seed, "script") };
}

/* ---- the table of tensors ---- */

typedef struct table {
    fmt_safetensors_decl *decl;
    char (*name)[NAME_BYTES];
    size_t n, decl_cap, name_cap;
} table;

static bool table_add(table *t, fmt_dtype dtype, int64_t rows, int64_t cols, const char *name)
{
    if (!mem_grow((void **)&t->decl, &t->decl_cap, t->n + 1, sizeof *t->decl)) return false;
    if (!mem_grow((void **)&t->name, &t->name_cap, t->n + 1, sizeof *t->name)) return false;
    snprintf(t->name[t->n], NAME_BYTES, "%s", name);
    t->decl[t->n] = (fmt_safetensors_decl){ .dtype = dtype, .ndim = cols ? 2 : 1, .shape = { rows, cols } };
    t->n++;
    return true;
}

static bool table_make(schedule s, table *t, eng_traffic_report *report)
{
    static const char *const DRAFT[] = { "slots", "anchor", "pos" };
    int64_t width = (int64_t)s.config->n_taps * s.config->dim;
    char name[NAME_BYTES];
    for (int32_t r = 0; r < s.rounds; r++) {
        round_plan p;
        plan_round(&s, r, &p);
        for (int32_t i = 0; i < p.n_inserts; i++) {
            const event *v = &p.insert[i];
            snprintf(name, sizeof name, "round.%d.insert.%d.taps", r, v->slot);
            if (!table_add(t, FMT_DTYPE_BF16, v->rows, width, name)) return false;
            snprintf(name, sizeof name, "round.%d.insert.%d.pos", r, v->slot);
            if (!table_add(t, FMT_DTYPE_I32, v->rows, 0, name)) return false;
            report->rows += v->rows;
        }
        for (size_t i = 0; i < COUNT_OF(DRAFT); i++) {
            snprintf(name, sizeof name, "round.%d.draft.%s", r, DRAFT[i]);
            if (!table_add(t, FMT_DTYPE_I32, p.batch, 0, name)) return false;
        }
        snprintf(name, sizeof name, "round.%d.draft.n_out", r);
        if (!table_add(t, FMT_DTYPE_I32, 1, 0, name)) return false;
        report->inserts += p.n_inserts;
        report->drafts += p.batch;
    }
    for (size_t i = 0; i < t->n; i++) t->decl[i].name = t->name[i]; /* the names have stopped moving */
    return true;
}

/* ---- the data ---- */

/* Per channel: 1, or the factor of an outlier. About one channel in 128, six at least; the first has the largest factor, so
 * that the limit is reached. */
static void gains_make(float *gain, int64_t width, uint64_t seed)
{
    uint64_t key = eng_noise_key(seed, "outlier channels");
    int64_t n = width / 128 > 6 ? width / 128 : 6;
    for (int64_t i = 0; i < width; i++) gain[i] = 1.0f;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = (int64_t)(eng_noise_bits(key, (uint64_t)(2 * i)) % (uint64_t)width);
        double u = i ? eng_noise_uniform(eng_noise_bits(key, (uint64_t)(2 * i + 1))) : 1.0;
        float g = (float)pow(10.0, OUTLIER_EXP_MIN + u * (OUTLIER_EXP_MAX - OUTLIER_EXP_MIN));
        if (g > gain[at]) gain[at] = g;
    }
}

static void tap_row(bf16 *out, const float *gain, int64_t width, uint64_t key, int32_t slot, int32_t pos)
{
    const float *normals = eng_noise_normals();
    uint64_t row_key = eng_noise_bits(eng_noise_bits(key, (uint64_t)slot), (uint64_t)pos);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < width; i++) {
        float v = TAP_STD * gain[i] * eng_noise_normal(normals, eng_noise_bits(row_key, (uint64_t)i));
        out[i] = bf16_from_f32(fminf(fmaxf(v, -TAP_MAX), TAP_MAX));
    }
}

static void put_i32(fmt_safetensors_writer *w, int32_t v)
{
    uint8_t bytes[4];
    put_u32(bytes, (uint32_t)v);
    fmt_safetensors_put(w, bytes, sizeof bytes);
}

static void write_rounds(schedule s, uint64_t seed, bf16 *row, const float *gain, fmt_safetensors_writer *w,
                         progress *shown)
{
    int64_t width = (int64_t)s.config->n_taps * s.config->dim;
    uint64_t tap_key = eng_noise_key(seed, "taps"), anchor_key = eng_noise_key(seed, "anchors");
    for (int32_t r = 0; r < s.rounds; r++) {
        round_plan p;
        plan_round(&s, r, &p);
        for (int32_t i = 0; i < p.n_inserts; i++) {
            const event *v = &p.insert[i];
            for (int32_t j = 0; j < v->rows; j++) {
                tap_row(row, gain, width, tap_key, v->slot, v->first_pos + j);
                fmt_safetensors_put(w, row, (size_t)width * sizeof *row);
            }
            for (int32_t j = 0; j < v->rows; j++) put_i32(w, v->first_pos + j);
            progress_add(shown, (uint64_t)v->rows);
        }
        for (int32_t i = 0; i < p.batch; i++) put_i32(w, p.insert[i].slot);
        for (int32_t i = 0; i < p.batch; i++)
            put_i32(w, (int32_t)(eng_noise_bits(anchor_key, (uint64_t)r * BATCH_MAX + (uint64_t)i) %
                                 (uint64_t)s.config->vocab));
        for (int32_t i = 0; i < p.batch; i++) put_i32(w, p.insert[i].first_pos + p.insert[i].rows - 1);
        put_i32(w, p.n_out);
    }
}

err_code eng_traffic_write(const char *path, const eng_config *c, int64_t rounds, int64_t slots, uint64_t seed, bool quiet,
                           eng_traffic_report *report, err *e)
{
    if (rounds < 1 || rounds > ENG_TRAFFIC_ROUNDS_MAX)
        return err_set(e, ERR_ARG, "rounds: found %lld, wanted 1 to %d", (long long)rounds, ENG_TRAFFIC_ROUNDS_MAX);
    if (slots < 1 || slots > ENG_TRAFFIC_SLOTS_MAX)
        return err_set(e, ERR_ARG, "slots: found %lld, wanted 1 to %d", (long long)slots, ENG_TRAFFIC_SLOTS_MAX);

    schedule s = schedule_make(c, (int32_t)rounds, (int32_t)slots, seed);
    int64_t width = (int64_t)c->n_taps * c->dim;
    eng_traffic_report counts = { 0 };
    table t = { 0 };
    fmt_safetensors_writer *w = NULL;
    bf16 *row = mem_alloc_aligned((size_t)width, sizeof *row);
    float *gain = mem_alloc_aligned((size_t)width, sizeof *gain);
    json_t *metadata = json_pack("{s:s, s:s}", "format", "sparktape-script-1", "traffic", "synthetic");
    err_code rc = ERR_OK;
    if (!row || !gain || !metadata || !table_make(s, &t, &counts)) {
        rc = err_set(e, ERR_NOMEM, "%s: no memory for a script of %lld rounds", path, (long long)rounds);
        goto out;
    }
    rc = fmt_safetensors_create(path, t.decl, t.n, metadata, &w, e);
    if (rc != ERR_OK) goto out;
    gains_make(gain, width, seed);
    progress p;
    progress_begin(&p, "writing", (uint64_t)counts.rows, quiet);
    write_rounds(s, seed, row, gain, w, &p);
    progress_end(&p);
    rc = fmt_safetensors_finish(w, e);
    if (rc == ERR_OK) *report = counts;
out:
    free(t.decl);
    free(t.name);
    free(row);
    free(gain);
    json_decref(metadata);
    return rc;
}
