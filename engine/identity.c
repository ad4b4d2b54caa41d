#include "engine/identity.h"

#include <lz4.h>
#include <msgpack.h>
#include <openssl/crypto.h>
#include <string.h>

#include "base/cpu.h"
#include "engine/device.h"
#include "engine/fault.h"

#ifndef SPARKTAPE_REVISION
#define SPARKTAPE_REVISION "unknown"
#endif
#ifdef __clang__
#define COMPILER __VERSION__
#else
#define COMPILER "gcc " __VERSION__
#endif

/* Where the head comes from: it may be delivered apart from the draft's own shards. */
static bool set_head(json_t *identity, const eng_weights *w, bool exl3)
{
    const char *tensor = exl3 ? "head.trellis" : "head.weight";
    fmt_sha256 sha;
    char hex[FMT_SHA256_HEX];
    if (eng_weights_sha256(w, tensor, &sha, NULL) != ERR_OK) return false;
    fmt_sha256_hex(&sha, hex);
    json_t *head = json_pack("{s:s, s:s, s:s}", "from", exl3 ? "exl3" : "official", "tensor", tensor, "sha256", hex);
    return json_object_set_new(identity, "head", head) == 0;
}

static eng_rep rep_word(const json_t *arm, const char *key, eng_rep otherwise)
{
    const char *word = json_string_value(json_object_get(arm, key));
    for (int r = ENG_REP_FP4; word && r <= ENG_REP_MIXED; r++)
        if (strcmp(word, eng_rep_name((eng_rep)r)) == 0) return (eng_rep)r;
    return otherwise;
}

/* Anything else is a factorised arm of an earlier version. */
static eng_markov markov_word(const json_t *arm)
{
    const char *word = json_string_value(json_object_get(arm, "markov"));
    for (int m = ENG_MARKOV_HOT; word && m <= ENG_MARKOV_CACHE; m++)
        if (strcmp(word, eng_markov_name((eng_markov)m)) == 0) return (eng_markov)m;
    return ENG_MARKOV_FACTORISED;
}

eng_reps eng_identity_reps(const json_t *identity)
{
    const json_t *arm = json_object_get(identity, "arm");
    return (eng_reps){ rep_word(arm, "experts", ENG_REP_FP4), rep_word(arm, "dense", ENG_REP_FP8),
                       rep_word(arm, "head", ENG_REP_BF16), markov_word(arm) };
}

json_t *eng_identity(const eng_weights *w, const eng_options *o)
{
    char checkpoint[FMT_SHA256_HEX];
    const eng_arm *a = o->arm;
    eng_weights_identity(w, checkpoint);
    json_t *identity = json_pack("{s:s, s:{s:s, s:s, s:s, s:s, s:s, s:s}, s:s, s:s, s:s, s:s, s:i, s:s, s:s,"
                     " s:{s:s, s:s, s:s}, s:{s:s, s:s, s:s, s:s}}",
                     "checkpoint", checkpoint,
                     "arm", "name", a->name, "experts", eng_rep_name(o->reps.experts), "dense", eng_rep_name(o->reps.dense),
                     "head", eng_rep_name(o->reps.head), "markov", eng_markov_name(o->reps.markov), "kernels", a->kernels,
                     "backend", eng_backend_name(o->backend), "mode", eng_mode_name(o->mode), "acc", eng_acc_name(o->acc),
                     "combine", eng_combine_name(o->combine), "tp", (int)o->n_ranks,
                     "device", cpu_name(), "isa", krn_isa_name(krn_isa_get()),
                     "build", "version", SPARKTAPE_VERSION, "source", SPARKTAPE_REVISION, "compiler", COMPILER,
                     "libraries", "lz4", LZ4_versionString(), "msgpack", msgpack_version(),
                     "jansson", jansson_version_str(), "openssl", OpenSSL_version(OPENSSL_VERSION));
    bool fine = identity && set_head(identity, w, o->reps.head == ENG_REP_EXL3);
    if (fine && o->backend == ENG_BACKEND_CUDA)
        fine = json_object_set_new(identity, "device", json_string(eng_device_name())) == 0 &&
               json_object_set_new(identity, "comm", json_string(eng_comm_name(o->comm))) == 0;
    if (fine && o->fault) fine = json_object_set_new(identity, "injected", eng_fault_json(o->fault)) == 0;
    if (fine) return identity;
    json_decref(identity);
    return NULL;
}

const char *eng_build(void) { return SPARKTAPE_VERSION " " SPARKTAPE_REVISION; }

err_code eng_identity_check(const json_t *recorded, const eng_weights *w, err *e)
{
    char ours[FMT_SHA256_HEX];
    const json_t *theirs = json_object_get(recorded, "checkpoint");
    eng_weights_identity(w, ours);
    /* An import may not know what made it: there is nothing to compare then. */
    if (!theirs || json_is_null(theirs)) return ERR_OK;
    const char *text = json_string_value(theirs);
    if (text && (strcmp(text, "unknown") == 0 || strcmp(text, ours) == 0)) return ERR_OK;
    return err_set(e, ERR_IDENTITY, "%s: found checkpoint %s, wanted %.80s as recorded", eng_weights_folder(w), ours,
                   text ? text : "a sha256");
}
