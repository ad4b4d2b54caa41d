#include "tui/judge.h"

#include "base/mem.h"
#include "engine/identity.h"
#include "replay/cause.h"
#include "tui/work.h"

enum { KEPT = 32, ASKED = 2 };

/* Where the illegal elements of a value are, a bit each. */
typedef struct illegal { int32_t slot; char value[RPL_NAME_BYTES]; int64_t n; uint8_t *bits; } illegal;

typedef struct known {
    const fmt_tape *tape;
    int32_t round;
    rpl_certificate c;
    illegal *illegal;
    size_t n_illegal, capacity;
} known;

struct tui_judge {
    const char *checkpoint;
    bool threaded;
    eng_weights *weights;
    tui_work *work;
    known asked[ASKED]; /* the work's until it is done */
    int n_asked;
    known kept[KEPT];   /* a ring */
    int n_kept, next;
    err e;
};

err_code tui_judge_open(const char *checkpoint, bool threaded, tui_judge **out, err *e)
{
    *out = mem_alloc(1, sizeof **out);
    if (!*out) return err_set(e, ERR_NOMEM, "no memory for certificates");
    (*out)->checkpoint = checkpoint;
    (*out)->threaded = threaded;
    return ERR_OK;
}

static void forget_one(known *k)
{
    for (size_t i = 0; i < k->n_illegal; i++) free(k->illegal[i].bits);
    free(k->illegal);
    rpl_certificate_fini(&k->c);
    *k = (known){ 0 };
}

/* ---- the work ---- */

static illegal *illegal_of(const known *k, int32_t slot, const char *value)
{
    for (size_t i = 0; i < k->n_illegal; i++)
        if (k->illegal[i].slot == slot && strcmp(k->illegal[i].value, value) == 0) return &k->illegal[i];
    return NULL;
}

/* A value may come twice, when what explains it was not at hand the first time: the later judgement counts. */
static err_code keep_illegal(known *k, const rpl_forced_value *v, const uint8_t *classes, err *e)
{
    int64_t n = fmt_tensor_elems(&v->recorded);
    uint8_t *bits = mem_alloc((size_t)n / 8 + 1, 1);
    illegal *x = illegal_of(k, v->slot, v->name);
    void *array = k->illegal;
    if (!bits || (!x && !mem_grow(&array, &k->capacity, k->n_illegal + 1, sizeof *k->illegal))) {
        free(bits);
        return err_set(e, ERR_NOMEM, "no memory for the illegal elements of %s", v->name);
    }
    if (!x) {
        k->illegal = array;
        x = &k->illegal[k->n_illegal++];
        *x = (illegal){ .slot = v->slot };
        snprintf(x->value, sizeof x->value, "%s", v->name);
    }
    for (int64_t i = 0; i < n; i++)
        if (classes[i] == RPL_ILLEGAL) bits[i / 8] |= (uint8_t)(1 << i % 8);
    free(x->bits);
    x->bits = bits;
    x->n = n;
    return ERR_OK;
}

typedef struct explaining { rpl_causes causes; known *known; } explaining;

static err_code explain(void *ctx, const rpl_forced_value *v, const rpl_verdict *verdict, const uint8_t *classes,
                        rpl_origin *o, err *e)
{
    explaining *x = ctx;
    TRY(keep_illegal(x->known, v, classes, e));
    return rpl_cause_explain(&x->causes, v, verdict, classes, o, e);
}

static err_code judge_one(tui_judge *j, known *k, err *e)
{
    const int32_t *number;
    size_t n = fmt_tape_rounds(k->tape, &number), i = 0;
    rpl_certify *certify;
    if (!j->weights) TRY(eng_weights_open(j->checkpoint, true, &j->weights, e));
    TRY(eng_identity_check(json_object_get(fmt_tape_head(k->tape), "identity"), j->weights, e));
    rpl_certify_options o = rpl_certify_options_of(k->tape);
    explaining x = { { .tape = k->tape, .n_ranks = o.n_ranks }, k };
    o.explain = explain;
    o.explain_ctx = &x;
    while (i < n && number[i] != k->round) i++;
    if (i == n) return err_set(e, ERR_INPUT, "%s has no round %d", fmt_tape_path(k->tape), k->round);
    TRY(rpl_certify_open(k->tape, j->weights, &o, &certify, e));
    err_code rc = rpl_certify_round(certify, (int32_t)i, &k->c, e);
    rpl_certify_close(certify);
    return rc;
}

static void judge_asked(void *ctx, const atomic_bool *cancel)
{
    tui_judge *j = ctx;
    (void)cancel;
    for (int i = 0; i < j->n_asked && j->e.code == ERR_OK; i++) {
        err e = { 0 };
        err_code rc = judge_one(j, &j->asked[i], &e);
        if (rc != ERR_OK) err_set(&j->e, rc, "%s", e.msg);
    }
}

/* ---- asking ---- */

/* Takes over what has been judged meanwhile. */
static void take(tui_judge *j)
{
    if (!j->work || !tui_work_done(j->work)) return;
    tui_work_end(j->work);
    j->work = NULL;
    for (int i = 0; i < j->n_asked; i++) {
        if (j->e.code != ERR_OK) {
            forget_one(&j->asked[i]);
            continue;
        }
        forget_one(&j->kept[j->next]);
        j->kept[j->next] = j->asked[i];
        j->next = (j->next + 1) % KEPT;
        if (j->n_kept < KEPT) j->n_kept++;
    }
    memset(j->asked, 0, sizeof j->asked);
    j->n_asked = 0;
}

int32_t tui_judge_at(tui_judge *j)
{
    if (j) take(j);
    return j && j->work ? j->asked[0].round : -1;
}

bool tui_judge_failed(tui_judge *j, err *e)
{
    if (!j || tui_judge_at(j) >= 0 || j->e.code == ERR_OK) return false;
    *e = j->e;
    j->e = (err){ 0 };
    return true;
}

static const known *find(tui_judge *j, const fmt_tape *tape, int32_t round)
{
    if (!j) return NULL;
    take(j);
    for (int i = 0; i < j->n_kept; i++)
        if (j->kept[i].tape == tape && j->kept[i].round == round) return &j->kept[i];
    return NULL;
}

const rpl_certificate *tui_judge_of(tui_judge *j, const fmt_tape *tape, int32_t round)
{
    const known *k = find(j, tape, round);
    return k ? &k->c : NULL;
}

int64_t tui_judge_illegal(tui_judge *j, const fmt_tape *tape, const cap_name *n, int64_t from, int by)
{
    const known *k = find(j, tape, n->round);
    const illegal *x = k ? illegal_of(k, n->slot, n->name) : NULL;
    for (int64_t i = from + by; x && i >= 0 && i < x->n; i += by)
        if (x->bits[i / 8] >> i % 8 & 1) return i;
    return -1;
}

bool tui_judge_any(tui_judge *j)
{
    if (j) take(j);
    return j && j->n_kept > 0;
}

bool tui_judge_ask(tui_judge *j, const fmt_tape *const *tapes, int n, int32_t round)
{
    if (tui_judge_at(j) >= 0) return false;
    j->e = (err){ 0 };
    for (int i = 0; i < n && i < ASKED; i++)
        if (!tui_judge_of(j, tapes[i], round)) j->asked[j->n_asked++] = (known){ .tape = tapes[i], .round = round };
    if (j->n_asked && tui_work_begin(j->threaded, judge_asked, j, &j->work, &j->e) != ERR_OK) j->n_asked = 0;
    take(j);
    return true;
}

const float *tui_judge_bias(tui_judge *j, int32_t stage, int64_t *n)
{
    if (!j || tui_judge_at(j) >= 0 || !j->weights) return NULL;
    if (stage < 0 || stage >= eng_weights_config(j->weights)->n_stages) return NULL;
    krn_weight w = eng_weights_view(j->weights, ENG_W_GATE_BIAS, stage, -1);
    *n = w.n;
    return w.data;
}

void tui_judge_forget(tui_judge *j)
{
    if (!j) return;
    tui_work_end(j->work);
    j->work = NULL;
    for (int i = 0; i < ASKED; i++) forget_one(&j->asked[i]);
    for (int i = 0; i < KEPT; i++) forget_one(&j->kept[i]);
    j->n_asked = j->n_kept = j->next = 0;
}

void tui_judge_close(tui_judge *j)
{
    if (!j) return;
    tui_judge_forget(j);
    eng_weights_close(j->weights);
    free(j);
}
