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
static bool set_head(json_t *identity, const eng_weights *w)
{
    static const char TENSOR[] = "head.weight";
    fmt_sha256 sha;
    char hex[FMT_SHA256_HEX];
    if (eng_weights_sha256(w, TENSOR, &sha, NULL) != ERR_OK) return false;
    fmt_sha256_hex(&sha, hex);
    json_t *head = json_pack("{s:s, s:s, s:s}", "from", "official", "tensor", TENSOR, "sha256", hex);
    return json_object_set_new(identity, "head", head) == 0;
}

json_t *eng_identity(const eng_weights *w, const eng_options *o)
{
    char checkpoint[FMT_SHA256_HEX];
    const eng_arm *a = o->arm;
    eng_weights_identity(w, checkpoint);
    json_t *identity = json_pack("{s:s, s:{s:s, s:s, s:s, s:s, s:s, s:s}, s:s, s:s, s:s, s:s, s:i, s:s, s:s,"
                     " s:{s:s, s:s, s:s}, s:{s:s, s:s, s:s, s:s}}",
                     "checkpoint", checkpoint,
                     "arm", "name", a->name, "experts", eng_rep_name(a->experts), "dense", eng_rep_name(a->dense),
                     "head", eng_rep_name(a->head), "markov", a->markov, "kernels", a->kernels,
                     "backend", eng_backend_name(o->backend), "mode", eng_mode_name(o->mode), "acc", eng_acc_name(o->acc),
                     "combine", eng_combine_name(o->combine), "tp", (int)o->n_ranks,
                     "device", cpu_name(), "isa", krn_isa_name(krn_isa_get()),
                     "build", "version", SPARKTAPE_VERSION, "source", SPARKTAPE_REVISION, "compiler", COMPILER,
                     "libraries", "lz4", LZ4_versionString(), "msgpack", msgpack_version(),
                     "jansson", jansson_version_str(), "openssl", OpenSSL_version(OPENSSL_VERSION));
    bool fine = identity && set_head(identity, w);
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
