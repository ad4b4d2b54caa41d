#include "base/clock.h"
#include "base/mem.h"
#include "engine/cmd_common.h"
#include "engine/commands.h"
#include "engine/manifest.h"
#include "engine/weights_export.h"

#include <math.h>
#include <string.h>

typedef struct weights_options {
    bool decode;
    const char *rank, *out;
} weights_options;

static const cli_option OPTIONS[] = {
    { "--decode", NULL, "FP4 and FP8 as BF16 [out, in], exact; EXL3 as F32 [in, out]", CLI_FLAG,
      offsetof(weights_options, decode) },
    { "--rank", "R/N", "what rank R of N holds", CLI_STR, offsetof(weights_options, rank) },
    { "-o", "FILE", "write a safetensors file instead of a list", CLI_NEW, offsetof(weights_options, out) },
};

/* "R/N"; NULL is 0/1. */
static err_code rank_parse(const char *text, eng_export_options *o, err *e)
{
    o->rank = 0;
    o->n_ranks = 1;
    if (!text) return ERR_OK;
    int rank, n_ranks, end = 0;
    if (sscanf(text, "%d/%d%n", &rank, &n_ranks, &end) != 2 || text[end] || n_ranks < 1 || n_ranks > ENG_RANKS_MAX ||
        rank < 0 || rank >= n_ranks)
        return err_set(e, ERR_ARG, "--rank: found '%s', wanted R/N with 0 <= R < N <= %d", text, ENG_RANKS_MAX);
    o->rank = rank;
    o->n_ranks = n_ranks;
    return ERR_OK;
}

typedef struct listing {
    eng_facts facts;
    char sha256[FMT_SHA256_HEX];
} listing;

/* sha256 and range of the values that are given out, for those that are not the stored ones. */
typedef struct given { fmt_sha256_state *hash; eng_facts facts; } given;

static void given_sink(void *ctx, const void *data, size_t bytes)
{
    given *g = ctx;
    const float *v = data;
    fmt_sha256_add(g->hash, data, bytes);
    for (size_t i = 0; i < bytes / sizeof *v; i++) {
        double a = fabs((double)v[i]);
        if (a > 0 && (g->facts.min_abs == 0 || a < g->facts.min_abs)) g->facts.min_abs = a;
        if (a > g->facts.max_abs) g->facts.max_abs = a;
    }
}

static err_code list_effective(const eng_export_item *item, listing *out, err *e)
{
    given g = { 0 };
    fmt_sha256 sha256;
    TRY(fmt_sha256_open(&g.hash, e));
    err_code rc = eng_export_stream(item, given_sink, &g, e);
    fmt_sha256_close(g.hash, &sha256);
    fmt_sha256_hex(&sha256, out->sha256);
    out->facts = g.facts;
    return rc;
}

static err_code list_one(const eng_weights *w, const eng_export_item *item, uint64_t *bins, listing *out, err *e)
{
    fmt_sha256 sha256;
    bool stored = item->share.whole && !item->decode;
    if (item->decode && item->spec.exl3) return list_effective(item, out, e);
    if (stored)
        TRY(eng_weights_sha256(w, item->spec.name, &sha256, e));
    else
        TRY(eng_export_sha256(item, &sha256, e));
    fmt_sha256_hex(&sha256, out->sha256);
    eng_facts_of(eng_weights_config(w), &item->spec, &item->share, item->stored->tensor.data, item->scale, bins,
                 &out->facts);
    return ERR_OK;
}

/* Name of the shard that holds the item. */
static const char *shard_of(const eng_weights *w, const eng_export_item *item)
{
    const fmt_checkpoint *files = eng_weights_files(w);
    for (size_t i = 0; i < fmt_checkpoint_count(files); i++)
        if (fmt_checkpoint_at(files, i) == item->stored) return fmt_checkpoint_shard_name(files, i);
    return "";
}

static const char *format_of(const eng_export_item *item)
{
    return !item->decode ? eng_format_name(&item->spec) : item->spec.exl3 ? "F32" : "BF16";
}

static json_t *item_json(const eng_weights *w, const eng_export_item *item, const listing *l)
{
    json_t *shape = json_array();
    for (int32_t d = 0; d < item->ndim; d++) json_array_append_new(shape, json_integer(item->shape[d]));
    json_t *j = json_pack("{s:i,s:s,s:s,s:s,s:o,s:I,s:s,s:o,s:o}", "schema", CMD_SCHEMA, "name", item->spec.name, "format",
                          format_of(item), "dtype", fmt_dtype_name(item->dtype),
                          "shape", shape, "bytes", (json_int_t)eng_export_bytes(item), "sha256", l->sha256, "min_abs",
                          fmt_json_real(l->facts.min_abs), "max_abs", fmt_json_real(l->facts.max_abs));
    /* Where the whole stored tensor begins, so that a byte of it can be looked at with any tool. */
    json_object_set_new(j, "shard", json_string(shard_of(w, item)));
    json_object_set_new(j, "offset", json_integer((json_int_t)item->stored->offset));
    return j;
}

static err_code item_print(const eng_weights *w, const eng_export_item *item, const listing *l, bool json, err *e)
{
    if (json) {
        json_t *j = item_json(w, item, l);
        err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "%s: no memory", item->spec.name);
        json_decref(j);
        return rc;
    }
    char shape[80] = "[";
    for (int32_t d = 0; d < item->ndim; d++) {
        size_t used = strlen(shape);
        snprintf(shape + used, sizeof shape - used, "%s%lld", d ? ", " : "", (long long)item->shape[d]);
    }
    strcat(shape, "]");
    printf("%-44s %-5s %-8s %-16s %12llu  %.16s  %.4g .. %.4g\n", item->spec.name,
           format_of(item), fmt_dtype_name(item->dtype), shape,
           (unsigned long long)eng_export_bytes(item), l->sha256, l->facts.min_abs, l->facts.max_abs);
    return ERR_OK;
}

static err_code list(const eng_weights *w, const eng_export_item *items, size_t n, const cli_common *common, err *e)
{
    listing *lines = mem_alloc(n, sizeof *lines);
    if (!lines) return err_set(e, ERR_NOMEM, "no memory for a list of %zu tensors", n);
    progress p;
    progress_begin(&p, "reading", n, common->quiet);
    err_code rc = ERR_OK;
#pragma omp parallel
    {
        uint64_t *bins = mem_alloc(ENG_FACTS_BINS, sizeof *bins);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < (int64_t)n; i++) {
            err mine = { 0 };
            err_code one = bins ? list_one(w, &items[i], bins, &lines[i], &mine)
                                : err_set(&mine, ERR_NOMEM, "no memory for %d counts", ENG_FACTS_BINS);
#pragma omp critical(cmd_weights_list)
            {
                if (one != ERR_OK && rc == ERR_OK) {
                    rc = one;
                    if (e) *e = mine;
                }
                progress_add(&p, 1);
            }
        }
        free(bins);
    }
    progress_end(&p);
    if (rc == ERR_OK && !common->json)
        printf("%-44s %-5s %-8s %-16s %12s  %-16s  %s\n", "name", "as", "dtype", "shape", "bytes", "sha256",
               "|value|, not 0");
    for (size_t i = 0; rc == ERR_OK && i < n; i++) rc = item_print(w, &items[i], &lines[i], common->json, e);
    free(lines);
    return rc;
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    (void)exit_status;
    weights_options o = { 0 };
    cli_common common;
    cli_args args;
    TRY(cli_parse(self, argc, argv, &o, &common, &args, e));
    if (common.help) { cli_help(self); return ERR_OK; }
    cmd_use_threads(&common);
    eng_export_options choice = { .pattern = args.count > 1 ? args.item[1] : NULL, .decode = o.decode };
    TRY(rank_parse(o.rank, &choice, e));
    eng_weights *w = NULL;
    eng_export_item *items = NULL;
    size_t n = 0;
    err_code rc = eng_weights_open(args.item[0], common.quiet, &w, e);
    if (rc != ERR_OK) goto out;
    rc = eng_cut_check(eng_weights_config(w), choice.n_ranks, e);
    if (rc != ERR_OK) goto out;
    rc = eng_export_select(w, &choice, &items, &n, e);
    if (rc != ERR_OK) goto out;
    rc = o.out ? eng_export_write(w, &choice, items, n, o.out, common.quiet, e) : list(w, items, n, &common, e);
    if (rc == ERR_OK && o.out) {
        uint64_t bytes = 0;
        for (size_t i = 0; i < n; i++) bytes += eng_export_bytes(&items[i]);
        rc = cmd_print_written(o.out, n, bytes, common.json, e);
    }
out:
    free(items);
    eng_weights_close(w);
    return rc;
}

const cli_command CMD_WEIGHTS = { "weights", "MODEL [PATTERN]",
                                  "lists tensors, or exports official, a rank's or decoded values", OPTIONS,
                                  sizeof OPTIONS / sizeof *OPTIONS, run };
