#include "engine/cmd_common.h"
#include "engine/commands.h"
#include "engine/identity.h"
#include "engine/manifest.h"

#include <string.h>

/* ---- manifest ---- */

typedef struct manifest_options { const char *out; } manifest_options;

static const cli_option MANIFEST_OPTIONS[] = {
    { "-o", "FILE", "write the manifest here (default: one line on stdout)", CLI_NEW, offsetof(manifest_options, out) },
};

static err_code run_manifest(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    (void)exit_status;
    manifest_options o = { 0 };
    cli_common common;
    cli_args args;
    TRY(cli_parse(self, argc, argv, &o, &common, &args, e));
    if (common.help) { cli_help(self); return ERR_OK; }
    cmd_use_threads(&common);
    eng_weights *w = NULL;
    eng_scan scan = { 0 };
    json_t *j = NULL;
    err_code rc = eng_weights_open(args.item[0], common.quiet, &w, e);
    if (rc != ERR_OK) goto out;
    rc = eng_scan_open(w, true, common.quiet, &scan, e);
    if (rc != ERR_OK) goto out;
    j = eng_manifest_json(w, &scan);
    if (!j)
        rc = err_set(e, ERR_NOMEM, "no memory for the manifest of %zu tensors", scan.n);
    else if (o.out)
        rc = fmt_json_write(o.out, j, e);
    else
        rc = fmt_json_print(stdout, j, e);
    if (rc == ERR_OK && o.out) rc = cmd_print_written(o.out, scan.n, scan.bytes, common.json, e);
out:
    json_decref(j);
    eng_scan_close(&scan);
    eng_weights_close(w);
    return rc;
}

const cli_command CMD_MANIFEST = { "manifest", "MODEL", "every tensor: format, bytes, sha256, values, what a rank holds",
                                   MANIFEST_OPTIONS, sizeof MANIFEST_OPTIONS / sizeof *MANIFEST_OPTIONS, run_manifest };

/* ---- verify ---- */

typedef struct verify_options { const char *receipt, *manifest; } verify_options;

static const cli_option VERIFY_OPTIONS[] = {
    { "--receipt", "FILE", "lines \"sha256  shard\", as sha256sum prints", CLI_IN, offsetof(verify_options, receipt) },
    { "--manifest", "FILE", "what `sparktape manifest` wrote", CLI_IN, offsetof(verify_options, manifest) },
};

enum { CHECKS_MAX = 4 };
typedef struct verdict {
    const char *name[CHECKS_MAX];
    char detail[CHECKS_MAX][ERR_MSG_BYTES];
    bool same[CHECKS_MAX];
    int n;
} verdict;

/* difference empty: the check holds and detail says what was looked at. */
static void verdict_add(verdict *v, const char *name, const char *difference, const char *detail)
{
    v->name[v->n] = name;
    v->same[v->n] = !difference[0];
    snprintf(v->detail[v->n], sizeof v->detail[v->n], "%s", difference[0] ? difference : detail);
    v->n++;
}

/* The bytes as they are now against those the identity was made from, which may be remembered from an earlier open. */
static err_code check_values(const eng_weights *w, const eng_scan *s, eng_difference *d, err *e)
{
    *d = (eng_difference){ 0 };
    for (size_t i = 0; i < s->n; i++) {
        const eng_tensor_record *r = &s->record[i];
        if (r->facts.nans)
            return err_set(e, ERR_INPUT, "%s (%s): found %lld NaN, wanted none", r->spec.name, r->shard,
                           (long long)r->facts.nans);
        fmt_sha256 known;
        TRY(eng_weights_sha256(w, r->spec.name, &known, e));
        if (!d->text[0] && memcmp(known.bytes, r->sha256.bytes, sizeof known.bytes) != 0)
            snprintf(d->text, sizeof d->text,
                     "%s (%s): the bytes changed since they were first read, size and time did not", r->spec.name,
                     r->shard);
    }
    return ERR_OK;
}

static err_code verify(const eng_weights *w, const verify_options *o, bool quiet, verdict *v, err *e)
{
    eng_scan s = { 0 };
    eng_difference d;
    char text[160];
    TRY(eng_scan_open(w, false, quiet, &s, e));
    err_code rc = check_values(w, &s, &d, e);
    if (rc != ERR_OK) goto out;
    snprintf(text, sizeof text, "%zu tensors, %.1f MiB: names, dtypes and shapes as the config wants", s.n,
             (double)s.bytes / 0x1p20);
    verdict_add(v, "inventory", "", text);
    verdict_add(v, "values", d.text, "no NaN code, no scale byte 255");
    if (o->manifest) {
        rc = eng_manifest_check(o->manifest, w, &s, &d, e);
        if (rc != ERR_OK) goto out;
        snprintf(text, sizeof text, "%zu tensors have the sha256 of the manifest", s.n);
        verdict_add(v, "manifest", d.text, text);
    }
    if (o->receipt) {
        int32_t checked, absent;
        rc = eng_receipt_check(o->receipt, w, &s, quiet, &checked, &absent, &d, e);
        if (rc != ERR_OK) goto out;
        snprintf(text, sizeof text, "%d files have the sha256 of the receipt, %d listed files are not here", checked,
                 absent);
        verdict_add(v, "receipt", d.text, text);
    }
out:
    eng_scan_close(&s);
    return rc;
}

static err_code verdict_print(const verdict *v, const char *model, const char *id, bool same, bool json, err *e)
{
    if (!json) {
        for (int i = 0; i < v->n; i++)
            printf("%-10s %-4s  %s\n", v->name[i], v->same[i] ? "PASS" : "FAIL", v->detail[i]);
        printf("%-10s       %s\n%s\n", "checkpoint", id, same ? "PASS" : "FAIL");
        return ERR_OK;
    }
    json_t *checks = json_array();
    for (int i = 0; i < v->n; i++)
        json_array_append_new(checks, json_pack("{s:s,s:b,s:s}", "check", v->name[i], "pass", v->same[i], "detail",
                                                v->detail[i]));
    json_t *j = json_pack("{s:i,s:s,s:s,s:s,s:o}", "schema", CMD_SCHEMA, "model", model, "verdict", same ? "PASS" : "FAIL",
                          "checkpoint", id, "checks", checks);
    err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "no memory for the report");
    json_decref(j);
    return rc;
}

static err_code run_verify(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    verify_options o = { 0 };
    cli_common common;
    cli_args args;
    TRY(cli_parse(self, argc, argv, &o, &common, &args, e));
    if (common.help) { cli_help(self); return ERR_OK; }
    cmd_use_threads(&common);
    eng_weights *w = NULL;
    TRY(eng_weights_open(args.item[0], common.quiet, &w, e));
    verdict v = { 0 };
    bool same = true;
    char id[FMT_SHA256_HEX];
    err_code rc = verify(w, &o, common.quiet, &v, e);
    if (rc == ERR_OK) {
        eng_weights_identity(w, id);
        for (int i = 0; i < v.n; i++) same = same && v.same[i];
        rc = verdict_print(&v, args.item[0], id, same, common.json, e);
        *exit_status = same ? 0 : 1;
    }
    eng_weights_close(w);
    return rc;
}

const cli_command CMD_VERIFY = { "verify", "MODEL", "checks a checkpoint: inventory, values, and a receipt or manifest",
                                 VERIFY_OPTIONS, sizeof VERIFY_OPTIONS / sizeof *VERIFY_OPTIONS, run_verify };

/* ---- identity ---- */

static const cli_option IDENTITY_OPTIONS[] = {
    { "--arm", "ARM", "see sparktape arms (default: native-packed)", CLI_STR, offsetof(eng_option_words, arm) },
    { "--backend", "NAME", "cpu or cuda", CLI_STR, offsetof(eng_option_words, backend) },
    { "--comm", "KIND", "cuda: nccl or emulated", CLI_STR, offsetof(eng_option_words, comm) },
    { "--tp", "N", "ranks (default: 1)", CLI_COUNT, offsetof(eng_option_words, tp) },
    { "--mode", "NAME", "eager or graph", CLI_STR, offsetof(eng_option_words, mode) },
    { "--acc", "NAME", "blocked or f64", CLI_STR, offsetof(eng_option_words, acc) },
    { "--combine", "NAME", "exact or fused", CLI_STR, offsetof(eng_option_words, combine) },
    { "--head", "NAME", "official or k6", CLI_STR, offsetof(eng_option_words, head) },
};

static err_code run_identity(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    (void)exit_status;
    eng_option_words words = { 0 };
    cli_common common;
    cli_args args;
    TRY(cli_parse(self, argc, argv, &words, &common, &args, e));
    if (common.help) { cli_help(self); return ERR_OK; }
    cmd_use_threads(&common);
    eng_options o;
    TRY(eng_options_parse(&words, common.threads, &o, e));
    eng_weights *w = NULL;
    TRY(eng_weights_open(args.item[0], common.quiet, &w, e));
    err_code rc = eng_cut_check(eng_weights_config(w), o.n_ranks, e);
    if (rc == ERR_OK && eng_weights_need(w, &o.reps, e) != ERR_OK) rc = err_wrap(e, "arm %s", o.arm->name);
    if (rc == ERR_OK) {
        json_t *j = eng_identity(w, &o);
        if (j && json_object_set_new(j, "schema", json_integer(CMD_SCHEMA)) == 0)
            rc = fmt_json_print(stdout, j, e);
        else
            rc = err_set(e, ERR_NOMEM, "no memory for the identity");
        json_decref(j);
    }
    eng_weights_close(w);
    return rc;
}

const cli_command CMD_IDENTITY = { "identity", "MODEL", "the receipt both ends of a link compare", IDENTITY_OPTIONS,
                                   sizeof IDENTITY_OPTIONS / sizeof *IDENTITY_OPTIONS, run_identity };
