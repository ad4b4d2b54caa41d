#include "engine/cmd_quantize.h"

#include <string.h>

#include "base/interrupt.h"
#include "engine/cmd_common.h"
#include "engine/commands.h"

typedef struct quantize_words {
    int64_t experts, dense, head, seed;
    const char *codebook, *calibrate, *backend;
    bool force;
} quantize_words;

static const cli_option OPTIONS[] = {
    { "--experts", "BITS", "bits a weight of the routed experts, 1 to 8 (default: 2)", CLI_INT,
      offsetof(quantize_words, experts) },
    { "--dense", "BITS", "of the dense linears; wo_a stays FP8 (default: 5)", CLI_INT, offsetof(quantize_words, dense) },
    { "--head", "BITS", "of the head (default: 6)", CLI_INT, offsetof(quantize_words, head) },
    { "--codebook", "NAME", "mul1 (default), mcg or 3inst", CLI_STR, offsetof(quantize_words, codebook) },
    { "--calibrate", "T.tape", "a deep tape of this model: errors go where its inputs feel them least (LDLQ)", CLI_IN,
      offsetof(quantize_words, calibrate) },
    { "--seed", "N", "of the random signs (default: 1)", CLI_INT, offsetof(quantize_words, seed) },
    { "--backend", "NAME", "cpu (default) or cuda; the bytes are the same", CLI_STR, offsetof(quantize_words, backend) },
    { "--force", NULL, "replace shards that were made of another model or with other options", CLI_FLAG,
      offsetof(quantize_words, force) },
};

eng_quantize_options cmd_quantize_defaults(void)
{
    return (eng_quantize_options){ .experts = 2, .dense = 5, .head = 6, .codebook = FMT_EXL3_MUL1, .seed = 1 };
}

static err_code bits_of(const char *option, int64_t found, int32_t *out, err *e)
{
    if (found < 1 || found > FMT_EXL3_BITS_MAX)
        return err_set(e, ERR_ARG, "%s: found %lld, wanted 1 to %d bits", option, (long long)found, FMT_EXL3_BITS_MAX);
    *out = (int32_t)found;
    return ERR_OK;
}

static err_code options_of(const quantize_words *w, const cli_common *common, eng_quantize_options *o, err *e)
{
    *o = cmd_quantize_defaults();
    TRY(bits_of("--experts", w->experts, &o->experts, e));
    TRY(bits_of("--dense", w->dense, &o->dense, e));
    TRY(bits_of("--head", w->head, &o->head, e));
    if (w->codebook && !fmt_exl3_codebook_parse(w->codebook, &o->codebook))
        return err_set(e, ERR_ARG, "--codebook: found '%s', wanted mul1, mcg or 3inst", w->codebook);
    o->cuda = w->backend && strcmp(w->backend, "cuda") == 0;
    if (w->backend && !o->cuda && strcmp(w->backend, "cpu") != 0)
        return err_set(e, ERR_ARG, "--backend: found '%s', wanted cpu or cuda", w->backend);
    o->seed = (uint64_t)w->seed;
    o->calibrate = w->calibrate;
    o->force = w->force;
    o->quiet = common->quiet;
    return ERR_OK;
}

/* ---- what came out ---- */

static int32_t part_bits(const eng_quantize_options *o, int i) { return i == 0 ? o->experts : i == 1 ? o->dense : o->head; }

void cmd_quantize_print(const char *out, const eng_quantize_options *o, const eng_quantize_report *r)
{
    printf("%s: %lld EXL3 tensors, %.1f MiB, %d shards (%d were there), codebook %s\n", out, (long long)r->tensors,
           (double)r->bytes / 0x1p20, r->shards, r->kept, fmt_exl3_codebook_name(o->codebook));
    for (int i = 0; i < ENG_QUANTIZE_PARTS; i++) {
        if (!r->part[i].linears) continue;
        printf("  %-8s K%d: %d linears, relative RMS error %.4f", ENG_QUANTIZE_PART[i], part_bits(o, i), r->part[i].linears,
               r->part[i].error);
        if (o->calibrate) printf(", %d calibrated, proxy error %.5f", r->part[i].calibrated, r->part[i].proxy);
        printf("\n");
    }
    if (r->tiles)
        printf("  %lld tiles in %.1f s, %.0f tiles/s\n", (long long)r->tiles, r->seconds, (double)r->tiles / r->seconds);
}

json_t *cmd_quantize_json(const char *out, const eng_quantize_options *o, const eng_quantize_report *r)
{
    json_t *j = json_pack("{s:s, s:s, s:I, s:i, s:i, s:I, s:I, s:I, s:f, s:f}", "out", out, "codebook",
                          fmt_exl3_codebook_name(o->codebook), "seed", (json_int_t)o->seed, "shards", r->shards, "kept",
                          r->kept, "tensors", (json_int_t)r->tensors, "bytes", (json_int_t)r->bytes, "tiles",
                          (json_int_t)r->tiles, "seconds", r->seconds, "tiles_per_s",
                          r->seconds > 0 ? (double)r->tiles / r->seconds : 0.0);
    for (int i = 0; i < ENG_QUANTIZE_PARTS; i++)
        fmt_json_put(&j, ENG_QUANTIZE_PART[i],
                     json_pack("{s:i, s:i, s:i, s:o, s:o}", "bits", part_bits(o, i), "linears", r->part[i].linears,
                               "calibrated", r->part[i].calibrated, "rms",
                               r->part[i].linears ? json_real(r->part[i].error) : json_null(), "proxy",
                               r->part[i].calibrated ? json_real(r->part[i].proxy) : json_null()));
    return j;
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    (void)exit_status;
    quantize_words w = { .experts = 2, .dense = 5, .head = 6, .seed = 1 };
    cli_common common;
    cli_args args;
    eng_quantize_options o;
    eng_quantize_report r;
    TRY(cli_parse(self, argc, argv, &w, &common, &args, e));
    if (common.help) { cli_help(self); return ERR_OK; }
    TRY(options_of(&w, &common, &o, e));
    cmd_use_threads(&common);
    interrupt_catch();
    TRY(eng_quantize(args.item[0], args.item[1], &o, &r, e));
    if (!common.json) {
        cmd_quantize_print(args.item[1], &o, &r);
        return ERR_OK;
    }
    json_t *j = cmd_quantize_json(args.item[1], &o, &r);
    fmt_json_put(&j, "schema", json_integer(CMD_SCHEMA));
    err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "no memory for the report");
    json_decref(j);
    return rc;
}

const cli_command CMD_QUANTIZE = { "quantize", "MODEL OUT", "writes the EXL3 delivery of a checkpoint, beside it or apart",
                                   OPTIONS, sizeof OPTIONS / sizeof *OPTIONS, run };
