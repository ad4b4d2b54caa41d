#include "engine/config.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "formats/kind.h"
#include "formats/number.h"

enum { CONFIG_FILE_MAX = 16 << 20, GROUP = FMT_QDQ_GROUP };

/* Integer keys. The upper bounds are far above any real model and low enough that every product of two dimensions fits an
 * int32_t and every tensor's bytes fit an int64_t, so that code behind this file may multiply without checking. */
typedef struct int_key { const char *name; size_t offset; int32_t lo, hi, multiple; } int_key;
#define INT(name, field, lo, hi, multiple) { name, offsetof(eng_config, field), lo, hi, multiple }
static const int_key INT_KEYS[] = {
    INT("vocab_size",                 vocab,          2, 1 << 24, 1),
    INT("dim",                        dim,            GROUP, 1 << 18, GROUP),
    INT("moe_inter_dim",              inter,          GROUP, 1 << 18, GROUP),
    INT("n_layers",                   n_layers,       1, 1 << 16, 1),
    INT("n_mtp_layers",               n_stages,       1, ENG_STAGES_MAX, 1),
    INT("dspark_block_size",          block,          1, ENG_BLOCK_MAX, 1),
    INT("dspark_noise_token_id",      noise_id,       0, (1 << 24) - 1, 1),
    INT("dspark_markov_rank",         markov_rank,    1, 1 << 16, 1),
    INT("dspark_n_routed_experts",    n_experts,      1, 1 << 12, 1),
    INT("dspark_n_activated_experts", n_active,       1, ENG_ACTIVE_MAX, 1),
    INT("n_heads",                    n_heads,        1, 1 << 12, 1),
    INT("q_lora_rank",                q_lora,         GROUP, 1 << 18, GROUP),
    INT("head_dim",                   head_dim,       GROUP, 1 << 14, GROUP),
    INT("rope_head_dim",              rope_dim,       2, 1 << 14, 2),
    INT("o_groups",                   o_groups,       1, 1 << 12, 1),
    INT("o_lora_rank",                o_lora,         1, 1 << 16, 1),
    INT("window_size",                window,         1, 1 << 20, 1),
    INT("hc_mult",                    hc,             1, ENG_HC_MAX, 1),
    INT("hc_sinkhorn_iters",          sinkhorn_iters, 1, 10000, 1),
};
#undef INT

/* Real keys. All end up in f32 arithmetic; the bounds keep them finite there. */
typedef struct real_key { const char *name; size_t offset; double lo, hi; } real_key;
#define REAL(name, field, lo, hi) { name, offsetof(eng_config, field), lo, hi }
static const real_key REAL_KEYS[] = {
    REAL("route_scale",  route_scale,  -1e30, 1e30),
    REAL("swiglu_limit", swiglu_limit, 1e-30, 1e30),
    REAL("norm_eps",     norm_eps,     0,     1e30),
    REAL("rope_theta",   rope_theta,   1,     1e30),
    REAL("hc_eps",       hc_eps,       0,     1e30),
};
#undef REAL

/* Keys whose value is a word: this code computes one thing only. */
typedef struct word_key { const char *name, *wanted; } word_key;
static const word_key WORD_KEYS[] = {
    { "score_func",   "sqrtsoftplus" },
    { "dtype",        "fp8"          },
    { "expert_dtype", "fp4"          },
};

static const char TAPS_KEY[] = "dspark_target_layer_ids";


static int32_t *int_at(eng_config *c, size_t offset) { return (int32_t *)((char *)c + offset); }
static double *real_at(eng_config *c, size_t offset) { return (double *)((char *)c + offset); }
static int32_t int_of(const eng_config *c, size_t offset) { return *(const int32_t *)((const char *)c + offset); }
static double real_of(const eng_config *c, size_t offset) { return *(const double *)((const char *)c + offset); }

/* A value as one short word for a message. */
static const char *found_text(const json_t *v, char buf[48])
{
    char *text = v ? fmt_json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    snprintf(buf, 48, "%.40s%s", v ? text ? text : "?" : "nothing", text && strlen(text) > 40 ? "..." : "");
    free(text);
    return buf;
}

static err_code read_int(const json_t *object, const char *where, const int_key *k, eng_config *c, err *e)
{
    const json_t *v = json_object_get(object, k->name);
    json_int_t i = json_integer_value(v);
    char found[48];
    if (!json_is_integer(v) || i < k->lo || i > k->hi)
        return err_set(e, ERR_INPUT, "%s: key %s: found %s, wanted an integer from %d to %d", where, k->name,
                       found_text(v, found), k->lo, k->hi);
    if (i % k->multiple)
        return err_set(e, ERR_INPUT, "%s: key %s: found %d, wanted a multiple of %d", where, k->name, (int)i, k->multiple);
    *int_at(c, k->offset) = (int32_t)i;
    return ERR_OK;
}

static err_code read_real(const json_t *object, const char *where, const real_key *k, eng_config *c, err *e)
{
    const json_t *v = json_object_get(object, k->name);
    double d = json_number_value(v);
    char found[48];
    if (!json_is_number(v) || !(d >= k->lo && d <= k->hi))
        return err_set(e, ERR_INPUT, "%s: key %s: found %s, wanted a number from %g to %g", where, k->name,
                       found_text(v, found), k->lo, k->hi);
    *real_at(c, k->offset) = d;
    return ERR_OK;
}

static err_code read_word(const json_t *object, const char *where, const word_key *k, err *e)
{
    const json_t *v = json_object_get(object, k->name);
    char found[48];
    if (!json_is_string(v) || strcmp(json_string_value(v), k->wanted) != 0)
        return err_set(e, ERR_INPUT, "%s: key %s: found %s, wanted \"%s\"", where, k->name, found_text(v, found),
                       k->wanted);
    return ERR_OK;
}

static err_code read_taps(const json_t *object, const char *where, eng_config *c, err *e)
{
    const json_t *v = json_object_get(object, TAPS_KEY);
    size_t n = json_array_size(v);
    char found[48];
    if (!json_is_array(v) || n < 1 || n > ENG_TAPS_MAX)
        return err_set(e, ERR_INPUT, "%s: key %s: found %s, wanted a list of 1 to %d layers", where, TAPS_KEY,
                       found_text(v, found), ENG_TAPS_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *layer = json_array_get(v, i);
        json_int_t id = json_integer_value(layer);
        if (!json_is_integer(layer) || id < 0 || id >= c->n_layers)
            return err_set(e, ERR_INPUT, "%s: key %s: found %s at %zu, wanted a layer from 0 to %d (n_layers %d)", where,
                           TAPS_KEY, found_text(layer, found), i, c->n_layers - 1, c->n_layers);
        c->tap_layer[i] = (int32_t)id;
    }
    c->n_taps = (int32_t)n;
    return ERR_OK;
}

/* Rules between keys; each names the key that a reader would change. */
static err_code check_together(const eng_config *c, const char *where, err *e)
{
    if (c->noise_id >= c->vocab)
        return err_set(e, ERR_INPUT, "%s: key dspark_noise_token_id: found %d, wanted less than vocab_size %d", where,
                       c->noise_id, c->vocab);
    if (c->n_active > c->n_experts)
        return err_set(e, ERR_INPUT, "%s: key dspark_n_activated_experts: found %d, wanted at most %d "
                       "(dspark_n_routed_experts)", where, c->n_active, c->n_experts);
    if (c->rope_dim > c->head_dim)
        return err_set(e, ERR_INPUT, "%s: key rope_head_dim: found %d, wanted at most head_dim %d", where, c->rope_dim,
                       c->head_dim);
    if (c->n_heads % c->o_groups)
        return err_set(e, ERR_INPUT, "%s: key o_groups: found %d, wanted a divisor of n_heads %d", where, c->o_groups,
                       c->n_heads);
    /* A group's width is a whole number of heads, and head_dim is a multiple of 32 already. */
    if (c->o_groups * c->o_lora % GROUP)
        return err_set(e, ERR_INPUT, "%s: key o_lora_rank: found %d, which times o_groups is %d, wanted a multiple of %d",
                       where, c->o_lora, c->o_groups * c->o_lora, GROUP);
    return ERR_OK;
}

err_code eng_config_parse(const json_t *object, const char *where, eng_config *out, err *e)
{
    eng_config c = { 0 };
    char found[48];
    if (!json_is_object(object))
        return err_set(e, ERR_INPUT, "%s: found %s, wanted an object", where, found_text(object, found));
    for (size_t i = 0; i < COUNT_OF(INT_KEYS); i++) TRY(read_int(object, where, &INT_KEYS[i], &c, e));
    for (size_t i = 0; i < COUNT_OF(REAL_KEYS); i++) TRY(read_real(object, where, &REAL_KEYS[i], &c, e));
    for (size_t i = 0; i < COUNT_OF(WORD_KEYS); i++) TRY(read_word(object, where, &WORD_KEYS[i], e));
    TRY(read_taps(object, where, &c, e));
    TRY(check_together(&c, where, e));
    *out = c;
    return ERR_OK;
}

err_code eng_config_read(const char *folder, eng_config *out, err *e)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/config.json", folder) >= (int)sizeof path)
        return err_set(e, ERR_ARG, "%.64s...: path longer than %zu bytes", folder, sizeof path);
    struct stat st;
    json_t *object = NULL;
    const bool is_there = stat(folder, &st) == 0;
    if (is_there ? !S_ISDIR(st.st_mode) : errno == ENOENT || errno == ENOTDIR)
        return err_set(e, ERR_INPUT, "%s: found %s, wanted a checkpoint folder", folder, fmt_kind_of(folder));
    TRY(fmt_json_read(path, CONFIG_FILE_MAX, &object, e));
    err_code rc = eng_config_parse(object, path, out, e);
    json_decref(object);
    return rc;
}

json_t *eng_config_json(const eng_config *c)
{
    json_t *object = json_object(), *taps = json_array();
    bool ok = object && taps;
    for (size_t i = 0; ok && i < COUNT_OF(INT_KEYS); i++)
        ok = json_object_set_new(object, INT_KEYS[i].name, json_integer(int_of(c, INT_KEYS[i].offset))) == 0;
    for (size_t i = 0; ok && i < COUNT_OF(REAL_KEYS); i++)
        ok = json_object_set_new(object, REAL_KEYS[i].name, json_real(real_of(c, REAL_KEYS[i].offset))) == 0;
    for (size_t i = 0; ok && i < COUNT_OF(WORD_KEYS); i++)
        ok = json_object_set_new(object, WORD_KEYS[i].name, json_string(WORD_KEYS[i].wanted)) == 0;
    for (int32_t i = 0; ok && i < c->n_taps; i++) ok = json_array_append_new(taps, json_integer(c->tap_layer[i])) == 0;
    ok = ok && json_object_set(object, TAPS_KEY, taps) == 0;
    json_decref(taps);
    if (ok) return object;
    json_decref(object);
    return NULL;
}

bool eng_config_preset(const char *name, eng_config *out)
{
    static const eng_config OFFICIAL = {
        .vocab = 129280, .dim = 5120, .n_layers = 40, .n_stages = 3, .block = 5, .noise_id = 128799,
        .n_taps = 3, .tap_layer = { 37, 38, 39 }, .markov_rank = 256, .n_experts = 128, .n_active = 3, .inter = 2304,
        .n_heads = 64, .head_dim = 512, .rope_dim = 64, .q_lora = 1280, .o_groups = 8, .o_lora = 1024,
        .window = 128, .hc = 4, .sinkhorn_iters = 20,
        .norm_eps = 1e-20, .hc_eps = 1e-6, .route_scale = 1.5, .swiglu_limit = 10, .rope_theta = 10000,
    };
    eng_config c = OFFICIAL;
    if (strcmp(name, "tiny") == 0 || strcmp(name, "mid") == 0) {
        c.vocab = 1280; c.dim = 256; c.inter = 128; c.n_experts = 8; c.markov_rank = 32;
        c.n_heads = 4; c.head_dim = 64; c.rope_dim = 16; c.q_lora = 128; c.o_groups = 4; c.o_lora = 32;
        if (strcmp(name, "mid") == 0) {
            c.vocab = 2048; c.inter = 256; c.head_dim = 128; c.rope_dim = 32; c.o_groups = 2; c.o_lora = 128;
        }
        c.noise_id = c.vocab - 481; /* as far from the end as the official one */
    } else if (strcmp(name, "official") != 0) {
        return false;
    }
    *out = c;
    return true;
}

bool eng_config_equal(const eng_config *a, const eng_config *b)
{
    for (size_t i = 0; i < COUNT_OF(INT_KEYS); i++)
        if (int_of(a, INT_KEYS[i].offset) != int_of(b, INT_KEYS[i].offset)) return false;
    for (size_t i = 0; i < COUNT_OF(REAL_KEYS); i++)
        if (real_of(a, REAL_KEYS[i].offset) != real_of(b, REAL_KEYS[i].offset)) return false;
    return a->n_taps == b->n_taps && memcmp(a->tap_layer, b->tap_layer, (size_t)a->n_taps * sizeof a->tap_layer[0]) == 0;
}
