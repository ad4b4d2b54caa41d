#include "tui/judge.h"

#include "base/mem.h"
#include "engine/identity.h"
#include "replay/cause.h"
#include "tui/work.h"

enum { KEPT = 32, ASKED = 2 };

typedef struct known { const fmt_tape *tape; int32_t round; rpl_certificate c; } known;

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

static err_code judge_one(tui_judge *j, known *k, err *e)
{
    const int32_t *number;
    size_t n = fmt_tape_rounds(k->tape, &number), i = 0;
    rpl_certify *certify;
    if (!j->weights) TRY(eng_weights_open(j->checkpoint, true, &j->weights, e));
    TRY(eng_identity_check(json_object_get(fmt_tape_head(k->tape), "identity"), j->weights, e));
    rpl_certify_options o = rpl_certify_options_of(k->tape);
    rpl_causes causes = { .tape = k->tape, .n_ranks = o.n_ranks };
    o.explain = rpl_cause_explain;
    o.explain_ctx = &causes;
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

/* Takes over what has been judged meanwhile. */
static void take(tui_judge *j)
{
    if (!j->work || !tui_work_done(j->work)) return;
    tui_work_end(j->work);
    j->work = NULL;
    for (int i = 0; i < j->n_asked; i++) {
        if (j->e.code != ERR_OK) {
            rpl_certificate_fini(&j->asked[i].c);
            continue;
        }
        rpl_certificate_fini(&j->kept[j->next].c);
        j->kept[j->next] = j->asked[i];
        j->next = (j->next + 1) % KEPT;
        if (j->n_kept < KEPT) j->n_kept++;
    }
    memset(j->asked, 0, sizeof j->asked);
    j->n_asked = 0;
}

bool tui_judge_busy(tui_judge *j)
{
    if (!j) return false;
    take(j);
    return j->work != NULL;
}

const rpl_certificate *tui_judge_of(tui_judge *j, const fmt_tape *tape, int32_t round)
{
    if (!j) return NULL;
    take(j);
    for (int i = 0; i < j->n_kept; i++)
        if (j->kept[i].tape == tape && j->kept[i].round == round) return &j->kept[i].c;
    return NULL;
}

bool tui_judge_any(tui_judge *j)
{
    if (j) take(j);
    return j && j->n_kept > 0;
}

bool tui_judge_ask(tui_judge *j, const fmt_tape *const *tapes, int n, int32_t round)
{
    if (tui_judge_busy(j)) return false;
    j->e = (err){ 0 };
    for (int i = 0; i < n && i < ASKED; i++)
        if (!tui_judge_of(j, tapes[i], round)) j->asked[j->n_asked++] = (known){ .tape = tapes[i], .round = round };
    if (j->n_asked && tui_work_begin(j->threaded, judge_asked, j, &j->work, &j->e) != ERR_OK) j->n_asked = 0;
    take(j);
    return true;
}

const float *tui_judge_bias(tui_judge *j, int32_t stage, int64_t *n)
{
    if (!j || tui_judge_busy(j) || !j->weights || stage < 0 || stage >=
        eng_weights_config(j->weights)->n_stages) return NULL;
    krn_weight w = eng_weights_view(j->weights, ENG_W_GATE_BIAS, stage, -1);
    *n = w.n;
    return w.data;
}

const char *tui_judge_why(tui_judge *j)
{
    if (!j || tui_judge_busy(j) || j->e.code == ERR_OK) return "";
    return j->e.msg;
}

void tui_judge_forget(tui_judge *j)
{
    if (!j) return;
    tui_work_end(j->work);
    j->work = NULL;
    for (int i = 0; i < ASKED; i++) rpl_certificate_fini(&j->asked[i].c);
    for (int i = 0; i < KEPT; i++) rpl_certificate_fini(&j->kept[i].c);
    j->n_asked = j->n_kept = j->next = 0;
}

void tui_judge_close(tui_judge *j)
{
    if (!j) return;
    tui_judge_forget(j);
    eng_weights_close(j->weights);
    free(j);
}
