#include "capture/prove.h"

#include "base/clock.h"
#include "base/mem.h"
#include "capture/taps.h"
#include "engine/device.h"

#include <math.h>

enum { PASSES = 3 };
static const char *const WAYS[CAP_WAYS] = { "untapped", "tapped", "half-tapped" };

typedef struct prover {
    eng_engine *g;
    const eng_script *script;
    cap_plan plan;
    uint8_t *half[CAP_STEPS];
    eng_shots *shots[CAP_WAYS];
    eng_shot **taken;      /* of the round that runs: its inserts, then the draft */
    uint64_t *seen;        /* [rounds] hash of what came out, of the first way and pass */
    double *us[CAP_WAYS], *device_us[CAP_WAYS]; /* [rounds * (PASSES - 1)]: until the answer; of the device */
    size_t n_us[CAP_WAYS], n_device_us[CAP_WAYS];
    bool by_device;        /* this pass waits for the device after every step and takes its time */
    cap_proof *out;
} prover;

static err_code no_memory(err *e) { return err_set(e, ERR_NOMEM, "--prove: no memory"); }

/* ---- one round ---- */

/* The way's tap; NULL: none. */
static const eng_tap *tap_for(prover *p, cap_way way, int32_t i, eng_tap *tap)
{
    if (way == CAP_UNTAPPED) return NULL;
    *tap = (eng_tap){ .shot = p->taken[i] = eng_shots_take(p->shots[way]) };
    CHECK(tap->shot); /* there are as many as a round has steps */
    return tap;
}

/* A round's outputs and the state it leaves, as one hash. */
static err_code hash_round(prover *p, const eng_round *round, const int32_t *slots, const int32_t *drafts,
                           const float *confidence, uint64_t *hash, err *e)
{
    uint64_t part[2 + ENG_BATCH_MAX * ENG_STAGES_MAX] = { 0 };
    size_t n = (size_t)round->batch * (size_t)round->n_out, parts = 2;
    part[0] = fmt_hash64(drafts, n * sizeof *drafts);
    part[1] = fmt_hash64(confidence, n * sizeof *confidence);
    for (int32_t b = 0; b < round->batch; b++)
        for (int32_t k = 0; k < eng_config_of(p->g)->n_stages; k++) {
            fmt_tensor t;
            TRY(eng_window(p->g, slots[b], k, &t, e));
            part[parts++] = fmt_hash64(t.data, fmt_tensor_bytes(&t));
        }
    *hash = fmt_hash64(part, parts * sizeof *part);
    return ERR_OK;
}

/* What the shots hold, for the mean; then they are free. */
static err_code collect(prover *p, cap_way way, int32_t n_steps, err *e)
{
    err_code rc = ERR_OK;
    for (int32_t i = 0; i < n_steps; i++) {
        eng_shot *shot = p->taken[i];
        p->taken[i] = NULL;
        if (!shot) continue;
        if (rc == ERR_OK) rc = eng_shot_wait(shot, e);
        for (int32_t v = 0; rc == ERR_OK && way == CAP_TAPPED && v < p->plan.program[eng_shot_step(shot)]->n_values; v++)
            p->out->taps += eng_shot_has(shot, v);
        eng_shot_free(shot);
    }
    return rc;
}

/* *device_us grows by what the steps took on the device, with packing their shots, which no answer waits for. */
static err_code run_steps(prover *p, cap_way way, const eng_round *round, const int32_t *slots, int32_t *drafts,
                          float *confidence, double *device_us, err *e)
{
    eng_tap tap;
    for (int32_t i = 0; i < round->n_inserts; i++) {
        const eng_insert_event *in = &round->inserts[i];
        TRY(eng_insert(p->g, eng_script_dense(p->script, in->slot), in->taps, in->pos, in->rows,
                       tap_for(p, way, i, &tap), e));
        if (p->by_device) *device_us += eng_device_step_us(eng_device_of(p->g, 0));
    }
    if (!round->batch) return ERR_OK;
    TRY(eng_draft(p->g, round->batch, slots, round->anchors, round->pos, round->n_out, drafts, confidence,
                  tap_for(p, way, round->n_inserts, &tap), e));
    if (p->by_device) *device_us += eng_device_step_us(eng_device_of(p->g, 0));
    return ERR_OK;
}

static err_code run_round(prover *p, cap_way way, int32_t pass, int32_t i, err *e)
{
    const eng_round *round = eng_script_at(p->script, i);
    int32_t slots[ENG_BATCH_MAX], drafts[ENG_BATCH_MAX * ENG_BLOCK_MAX];
    float confidence[ENG_BATCH_MAX * ENG_BLOCK_MAX];
    uint64_t hash;
    for (int32_t b = 0; b < round->batch; b++) slots[b] = eng_script_dense(p->script, round->slots[b]);
    uint64_t start_ns = clock_ns();
    double device_us = 0;
    err_code rc = run_steps(p, way, round, slots, drafts, confidence, &device_us, e);
    double us = (double)(clock_ns() - start_ns) * 1e-3;
    err_code collected = collect(p, way, round->n_inserts + 1, rc == ERR_OK ? e : NULL);
    if (rc == ERR_OK) rc = collected;
    if (rc == ERR_OK) rc = hash_round(p, round, slots, drafts, confidence, &hash, e);
    if (rc != ERR_OK) return err_wrap(e, "%s, round %d", WAYS[way], round->round);
    if (p->by_device) p->device_us[way][p->n_device_us[way]++] = device_us;
    else if (pass > 0) p->us[way][p->n_us[way]++] = us;
    if (pass == 0 && way == CAP_UNTAPPED) p->seen[i] = hash;
    else if (hash != p->seen[i] && p->out->same) {
        p->out->same = false;
        snprintf(p->out->difference, sizeof p->out->difference,
                 "round %d: drafts, confidence or windows of the %s run %d differ from the first untapped run's",
                 round->round, WAYS[way], pass + 1);
    }
    return ERR_OK;
}

/* ---- all of it ---- */

static err_code open_shots(prover *p, err *e)
{
    int32_t most = 0, rows = ENG_INSERT_ROWS_MAX;
    for (int32_t i = 0; i < eng_script_rounds(p->script); i++) {
        const eng_round *round = eng_script_at(p->script, i);
        if (round->n_inserts > most) most = round->n_inserts;
        for (int32_t k = 0; k < round->n_inserts; k++)
            if (round->inserts[k].rows > rows) rows = round->inserts[k].rows;
    }
    p->taken = mem_alloc((size_t)most + 1, sizeof *p->taken);
    if (!p->taken) return no_memory(e);
    for (int s = 0; s < CAP_STEPS; s++) {
        int32_t n = p->plan.program[s]->n_values, kept = 0;
        p->half[s] = mem_alloc((size_t)n + 1, sizeof *p->half[s]);
        if (!p->half[s]) return no_memory(e);
        for (int32_t v = 0; v < n; v++)
            if (p->plan.keep[s][v] && kept++ % 2 == 0) p->half[s][v] = p->plan.keep[s][v];
    }
    const uint8_t *const all[CAP_STEPS] = { p->plan.keep[0], p->plan.keep[1] };
    const uint8_t *const half[CAP_STEPS] = { p->half[0], p->half[1] };
    TRY(eng_shots_open(p->g, all, most + 1, 0, rows, &p->shots[CAP_TAPPED], e));
    return eng_shots_open(p->g, half, most + 1, 0, rows, &p->shots[CAP_HALF_TAPPED], e);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts v; 0 of nothing. */
static double median(double *v, size_t n)
{
    if (n == 0) return 0;
    qsort(v, n, sizeof *v, by_value);
    return v[n / 2];
}

/* Rounds differ more than taps cost: each is compared with itself. A standard deviation is 1.4826 of the median distance
 * from the median, and a median's standard error 1.2533 of a mean's. */
static err_code compare_ways(const double *tapped, const double *untapped, size_t n, double *extra, double *noise, err *e)
{
    double *d = mem_alloc(n + 1, sizeof *d);
    if (!d) return no_memory(e);
    for (size_t i = 0; i < n; i++) d[i] = tapped[i] - untapped[i];
    *extra = median(d, n);
    for (size_t i = 0; i < n; i++) d[i] = fabs(d[i] - *extra);
    *noise = n ? 2 * 1.2533 * 1.4826 * median(d, n) / sqrt((double)n) : 0;
    free(d);
    return ERR_OK;
}

static err_code prove(prover *p, const cap_options *o, bool quiet, err *e)
{
    int32_t n = eng_script_rounds(p->script);
    progress bar;
    TRY(cap_plan_init(p->g, o, &p->plan, e));
    TRY(open_shots(p, e));
    p->seen = mem_alloc((size_t)n, sizeof *p->seen);
    for (int w = 0; w < CAP_WAYS; w++) {
        p->us[w] = mem_alloc((size_t)n * (PASSES - 1), sizeof *p->us[w]);
        p->device_us[w] = mem_alloc((size_t)n * (PASSES - 1), sizeof *p->device_us[w]);
        if (!p->us[w] || !p->device_us[w]) return no_memory(e);
    }
    if (!p->seen) return no_memory(e);
    *p->out = (cap_proof){ .rounds = n, .passes = PASSES, .same = true };
    progress_begin(&bar, "proving", (uint64_t)n * PASSES * CAP_WAYS, quiet);
    err_code rc = ERR_OK;
    for (int pass = 0; pass < PASSES; pass++) {
        p->by_device = pass == PASSES - 1 && eng_device_of(p->g, 0); /* apart: to take it changes when a step starts */
        for (int w = 0; w < CAP_WAYS; w++) {
            for (int32_t slot = 0; slot < eng_script_slots(p->script); slot++) eng_release(p->g, slot);
            for (int32_t i = 0; i < n && rc == ERR_OK; i++, progress_add(&bar, 1))
                rc = run_round(p, (cap_way)w, pass, i, e);
        }
    }
    progress_end(&bar);
    if (rc != ERR_OK) return rc;
    double *const *of = p->by_device ? p->device_us : p->us;
    TRY(compare_ways(of[CAP_TAPPED], of[CAP_UNTAPPED], (p->by_device ? p->n_device_us : p->n_us)[CAP_TAPPED],
                     &p->out->extra_us, &p->out->noise_us, e));
    for (int w = 0; w < CAP_WAYS; w++) {
        p->out->round_us[w] = median(p->us[w], p->n_us[w]);
        p->out->device_us[w] = median(p->device_us[w], p->n_device_us[w]);
    }
    double rounds = (double)n * PASSES, extra = p->out->extra_us;
    p->out->taps /= rounds;
    p->out->kbytes = (double)eng_shots_cost(p->shots[CAP_TAPPED]).bytes / rounds / 1e3;
    p->out->us_per_tap = p->out->taps > 0 ? extra / p->out->taps : 0;
    p->out->us_per_kb = p->out->kbytes > 0 ? extra / p->out->kbytes : 0;
    return ERR_OK;
}

err_code cap_prove(eng_engine *g, const eng_script *s, const cap_options *o, bool quiet, cap_proof *out, err *e)
{
    prover p = { .g = g, .script = s, .out = out };
    err_code rc = prove(&p, o, quiet, e);
    for (int w = 0; w < CAP_WAYS; w++) {
        eng_shots_close(p.shots[w]);
        free(p.us[w]);
        free(p.device_us[w]);
    }
    for (int k = 0; k < CAP_STEPS; k++) free(p.half[k]);
    for (int32_t slot = 0; slot < eng_script_slots(s); slot++) eng_release(g, slot);
    cap_plan_fini(&p.plan);
    free(p.taken);
    free(p.seen);
    return rc;
}

err_code cap_proof_print(const cap_proof *p, bool json, err *e)
{
    bool seen = p->extra_us > p->noise_us;
    if (!json) {
        printf("%s  %d rounds, %d times each way: %s\n", p->same ? "PASS" : "FAIL", p->rounds, p->passes,
               p->same ? "drafts, confidence and windows have the same bits" : p->difference);
        printf("a round takes %.1f us untapped, %.1f half-tapped, %.1f tapped until it is answered (medians)\n",
               p->round_us[CAP_UNTAPPED], p->round_us[CAP_HALF_TAPPED], p->round_us[CAP_TAPPED]);
        if (p->device_us[CAP_UNTAPPED] > 0)
            printf("its steps take the device %.1f us untapped, %.1f half-tapped, %.1f tapped, with packing\n",
                   p->device_us[CAP_UNTAPPED], p->device_us[CAP_HALF_TAPPED], p->device_us[CAP_TAPPED]);
        if (seen)
            printf("the difference is %.1f us a round (noise %.1f): %.3f us a tap of %.1f, %.3f us a KB of %.1f\n",
                   p->extra_us, p->noise_us, p->us_per_tap, p->taps, p->us_per_kb, p->kbytes);
        else
            printf("the difference is below the noise: at most %.1f us a round of %.1f taps, %.1f KB (noise %.1f)\n",
                   fmax(p->extra_us, 0) + p->noise_us, p->taps, p->kbytes, p->noise_us);
        return ERR_OK;
    }
    json_t *j = json_pack("{s:i, s:s, s:s, s:i, s:i, s:{s:f, s:f, s:f}, s:{s:f, s:f, s:f}, s:f, s:f, s:f, s:f, s:b, s:o,"
                          " s:o}", "schema", 1, "verdict", p->same ? "PASS" : "FAIL", "difference", p->difference, "rounds",
                          (int)p->rounds, "passes", (int)p->passes, "round_us", "untapped", p->round_us[CAP_UNTAPPED],
                          "half_tapped", p->round_us[CAP_HALF_TAPPED], "tapped", p->round_us[CAP_TAPPED], "device_us",
                          "untapped", p->device_us[CAP_UNTAPPED], "half_tapped", p->device_us[CAP_HALF_TAPPED], "tapped",
                          p->device_us[CAP_TAPPED], "taps", p->taps, "kbytes", p->kbytes, "extra_us", p->extra_us,
                          "noise_us", p->noise_us, "below_noise", !seen, "us_per_tap",
                          seen ? json_real(p->us_per_tap) : json_null(), "us_per_kb",
                          seen ? json_real(p->us_per_kb) : json_null());
    err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "no memory for the report");
    json_decref(j);
    return rc;
}
