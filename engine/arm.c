#include "engine/arm.h"

#include <string.h>

#include "base/mem.h"
#include "engine/bootstrap.h"
#include "engine/config.h"
#include "engine/device.h"

#define ARM(name, experts, dense, head, fixed_head, markov, kernels, summary) \
    { name, ENG_REP_##experts, ENG_REP_##dense, ENG_REP_##head, ENG_MARKOV_##markov, kernels, false, false, fixed_head, \
      false, false, KRN_ACC_BLOCKED, summary }
#define KX_ARM(name, dense, kernels, kx2, summary) \
    { name, ENG_REP_FP4, ENG_REP_##dense, ENG_REP_BF16, ENG_MARKOV_FACTORISED, kernels, true, kx2, false, false, false, \
      KRN_ACC_BLOCKED, summary }
/* The head is the one that offline commands run, the official BF16, unless the arm has no other than K6. EXL3 dense leaves
 * wo_a in official FP8. */
static const eng_arm ARMS[] = {
    ARM("k2-tp2", EXL3, EXL3, EXL3, true, CACHE, "own",
        "control: EXL3 K2 experts, K5 dense with official FP8 wo_a, K6 head"),
    ARM("k2-head", EXL3, EXL3, BF16, true, FACTORISED, "own", "EXL3 K2 experts, K5 dense, official head"),
    ARM("native-experts-packed", FP4, EXL3, EXL3, true, FACTORISED, "first",
        "MXFP4 experts as stored, EXL3 K5 dense, K6 head"),
    ARM("native-packed", FP4, FP8, BF16, false, FACTORISED, "first",
        "official bytes: MXFP4 experts and FP8 dense, decoded in the product"),
    ARM("native-hybrid", FP4, BF16, BF16, false, FACTORISED, "first",
        "MXFP4 experts as stored, dense decoded once to BF16 (exact)"),
    ARM("native-expanded", BF16, BF16, BF16, false, FACTORISED, "first",
        "experts and dense decoded once to BF16 (exact)"),
    ARM("native-hybrid-head", FP4, BF16, BF16, true, FACTORISED, "first",
        "as native-hybrid, always with the official head and fp32 logits"),
    ARM("native-hybrid-head-hot", FP4, BF16, BF16, true, HOT, "first",
        "as native-hybrid-head, the Markov term of frequent tokens from a table"),
    KX_ARM("native-packed-kx", FP8, "kx", false, "as native-packed, bit for bit: experts laid for a card's registers"),
    KX_ARM("native-hybrid-kx", BF16, "kx", false, "as native-hybrid, bit for bit: experts laid for a card's registers"),
    KX_ARM("native-hybrid-kx2", MIXED, "kx2", true,
           "as native-packed, bit for bit: experts in one launch where it is faster, main_proj decoded"),
    { "mirror", ENG_REP_FP4, ENG_REP_FP8, ENG_REP_BF16, ENG_MARKOV_FACTORISED, "reference", false, false, true, true, true,
      KRN_ACC_BLOCKED, "reference: official values on one rank, fp32 in the official block order" },
    { "mirror64", ENG_REP_FP4, ENG_REP_FP8, ENG_REP_BF16, ENG_MARKOV_FACTORISED, "reference", false, false, true, true,
      true, KRN_ACC_F64, "reference: official values on one rank, exact products, float64 sums" },
};
#undef ARM
#undef KX_ARM

static const char DEFAULT_ARM[] = "native-packed";

size_t eng_arm_count(void) { return COUNT_OF(ARMS); }

const eng_arm *eng_arm_at(size_t i)
{
    CHECK(i < COUNT_OF(ARMS));
    return &ARMS[i];
}

const eng_arm *eng_arm_find(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(ARMS); i++)
        if (strcmp(ARMS[i].name, name) == 0) return &ARMS[i];
    return NULL;
}

eng_reps eng_arm_reps(const eng_arm *a) { return (eng_reps){ a->experts, a->dense, a->head, a->markov }; }

bool eng_reps_exl3(const eng_reps *r, eng_wid id)
{
    if (!eng_wid_has_exl3(id)) return false;
    eng_part part = eng_wkind_of(id)->part;
    return (part == ENG_PART_EXPERTS ? r->experts : part == ENG_PART_DENSE ? r->dense : r->head) == ENG_REP_EXL3;
}

bool eng_reps_expand(const eng_reps *r, eng_wid id)
{
    eng_wclass c = eng_wkind_of(id)->wclass;
    /* Of MIXED the one that is faster so, by inserts of many rows (tests/gpu/results/2026-12-01-h200-overlap.txt). */
    if (c == ENG_WC_FP8 && r->dense == ENG_REP_MIXED) return id == ENG_W_MAIN_PROJ;
    return (c == ENG_WC_FP4 && r->experts == ENG_REP_BF16) || (c == ENG_WC_FP8 && r->dense == ENG_REP_BF16);
}

/* ---- words ---- */

static const char *const ACC_WORDS[] = { [KRN_ACC_BLOCKED] = "blocked", [KRN_ACC_F64] = "f64" };
static const char *const COMBINE_WORDS[] = { [ENG_COMBINE_EXACT] = "exact", [ENG_COMBINE_FUSED] = "fused" };
static const char *const MODE_WORDS[] = { [ENG_MODE_EAGER] = "eager", [ENG_MODE_GRAPH] = "graph" };
static const char *const BACKEND_WORDS[] = { [ENG_BACKEND_CPU] = "cpu", [ENG_BACKEND_CUDA] = "cuda" };
static const char *const COMM_WORDS[] = { [ENG_COMM_NCCL] = "nccl", [ENG_COMM_EMULATED] = "emulated",
                                          [ENG_COMM_SOLO] = "solo" };
static const char *const HEAD_WORDS[] = { "official", "k6" };
static const char *const REP_WORDS[] = { [ENG_REP_FP4] = "mxfp4", [ENG_REP_FP8] = "fp8", [ENG_REP_BF16] = "bf16",
                                         [ENG_REP_EXL3] = "exl3", [ENG_REP_MIXED] = "mixed" };
static const char *const MARKOV_WORDS[] = { [ENG_MARKOV_FACTORISED] = "factorised", [ENG_MARKOV_HOT] = "hot rows",
                                            [ENG_MARKOV_CACHE] = "bias cache" };

#define WORD_OF(words, i) ((size_t)(i) < COUNT_OF(words) ? words[i] : "?")
const char *eng_acc_name(krn_acc a) { return WORD_OF(ACC_WORDS, a); }
const char *eng_combine_name(eng_combine c) { return WORD_OF(COMBINE_WORDS, c); }
const char *eng_mode_name(eng_mode m) { return WORD_OF(MODE_WORDS, m); }
const char *eng_backend_name(eng_backend b) { return WORD_OF(BACKEND_WORDS, b); }
const char *eng_comm_name(eng_comm_kind k) { return WORD_OF(COMM_WORDS, k); }
const char *eng_rep_name(eng_rep r) { return WORD_OF(REP_WORDS, r); }
const char *eng_markov_name(eng_markov m) { return WORD_OF(MARKOV_WORDS, m); }

/* The index of text among n words; NULL is the word with index otherwise. */
static err_code pick(const char *option, const char *text, const char *const *words, size_t n, int otherwise, int *out,
                     err *e)
{
    char list[128] = "";
    *out = otherwise;
    if (!text) return ERR_OK;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(text, words[i]) == 0) {
            *out = (int)i;
            return ERR_OK;
        }
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", words[i]);
    }
    return err_set(e, ERR_ARG, "%s: found '%.64s', wanted one of: %s", option, text, list);
}
#define PICK(option, text, words, otherwise, out, e) pick(option, text, words, COUNT_OF(words), otherwise, out, e)

/* One process a rank: whether the words name a rank of NCCL and where rank 0 is. */
static err_code check_process(const eng_option_words *words, const eng_options *o, err *e)
{
    if (words->rank && !words->bootstrap)
        return err_set(e, ERR_ARG, "--rank %lld: wanted --bootstrap with it", (long long)words->rank);
    if (!words->bootstrap) return ERR_OK;
    if (o->backend != ENG_BACKEND_CUDA || o->comm != ENG_COMM_NCCL || o->n_ranks < 2)
        return err_set(e, ERR_ARG, "--bootstrap: only for ranks that meet through NCCL: --backend cuda --tp 2 or more");
    if (words->rank < 0 || words->rank >= o->n_ranks)
        return err_set(e, ERR_ARG, "--rank: found %lld, wanted 0 to %d", (long long)words->rank, o->n_ranks - 1);
    return eng_bootstrap_check(words->bootstrap, e);
}

static err_code pick_arm(const char *name, const eng_arm **out, err *e)
{
    char list[384] = "";
    *out = eng_arm_find(name);
    if (*out) return ERR_OK;
    for (size_t i = 0; i < COUNT_OF(ARMS); i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", ARMS[i].name);
    }
    return err_set(e, ERR_ARG, "--arm: found '%.64s', wanted one of: %s", name, list);
}

err_code eng_options_parse(const eng_option_words *words, int64_t threads, eng_options *out, err *e)
{
    eng_options o = { 0 };
    int backend, mode, acc, combine, head, comm;
    TRY(pick_arm(words->arm ? words->arm : DEFAULT_ARM, &o.arm, e));
    TRY(PICK("--backend", words->backend, BACKEND_WORDS, ENG_BACKEND_CPU, &backend, e));
    TRY(PICK("--mode", words->mode, MODE_WORDS, ENG_MODE_EAGER, &mode, e));
    TRY(PICK("--acc", words->acc, ACC_WORDS, o.arm->acc, &acc, e));
    TRY(PICK("--combine", words->combine, COMBINE_WORDS, ENG_COMBINE_EXACT, &combine, e));
    TRY(PICK("--head", words->head, HEAD_WORDS, o.arm->head == ENG_REP_EXL3, &head, e));
    /* solo is not a word here: what it computes must not reach a tape. bench sets it. */
    TRY(pick("--comm", words->comm, COMM_WORDS, ENG_COMM_SOLO, ENG_COMM_NCCL, &comm, e));
    if (o.arm->fixed_head && (head == 1) != (o.arm->head == ENG_REP_EXL3))
        return err_set(e, ERR_ARG, "--head %s: arm %s has one head, wanted %s", HEAD_WORDS[head], o.arm->name,
                       HEAD_WORDS[!head]);
    if (words->tp < 0 || words->tp > ENG_RANKS_MAX)
        return err_set(e, ERR_ARG, "--tp: found %lld, wanted 1 to %d", (long long)words->tp, ENG_RANKS_MAX);
    o.n_ranks = words->tp ? (int32_t)words->tp : 1;
    if (o.arm->unsharded && o.n_ranks > 1)
        return err_set(e, ERR_ARG, "--tp %d: arm %s runs on one rank, wanted 1", o.n_ranks, o.arm->name);
    if (o.arm->fixed_acc && acc != (int)o.arm->acc)
        return err_set(e, ERR_ARG, "--acc %s: arm %s is defined by its accumulation, wanted %s", ACC_WORDS[acc],
                       o.arm->name, ACC_WORDS[o.arm->acc]);
    if (threads < 0 || threads > INT32_MAX)
        return err_set(e, ERR_ARG, "--threads: found %lld, wanted 0 to %d", (long long)threads, INT32_MAX);
    if (backend != ENG_BACKEND_CUDA && words->comm)
        return err_set(e, ERR_ARG, "--comm %s: only for --backend cuda", words->comm);
    if (backend == ENG_BACKEND_CUDA && acc != KRN_ACC_BLOCKED)
        return err_set(e, ERR_ARG, "--acc %s: the CUDA kernels sum in fp32, wanted blocked", ACC_WORDS[acc]);
    if (backend == ENG_BACKEND_CUDA && o.arm->unsharded)
        return err_set(e, ERR_ARG, "--backend cuda: arm %s is a CPU reference, wanted a native arm", o.arm->name);
    o.backend = (eng_backend)backend;
    o.mode = (eng_mode)mode;
    o.acc = o.exl3_acc = (krn_acc)acc;
    o.reps = eng_arm_reps(o.arm);
    o.reps.head = head ? ENG_REP_EXL3 : ENG_REP_BF16;
    o.combine = (eng_combine)combine;
    o.comm = (eng_comm_kind)comm;
    o.threads = (int32_t)threads;
    TRY(check_process(words, &o, e));
    o.bootstrap = words->bootstrap;
    o.rank = (int32_t)words->rank;
    if (o.backend == ENG_BACKEND_CUDA) TRY(eng_device_check(&o, e));
    *out = o;
    return ERR_OK;
}
