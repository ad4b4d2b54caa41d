#include "base/mem.h"
#include "capture/reference.h"
#include "engine/cmd_common.h"
#include "engine/identity.h"
#include "replay/commands.h"
#include "replay/coverage.h"
#include "replay/reduce.h"
#include "replay/source.h"

enum { LARGE_BYTES = 25 << 20 }; /* what issue trackers take */

typedef struct words {
    const char *out, *op, *rows;
    int64_t round, slot;
} words;

static const cli_option OPTIONS[] = {
    { "--op", "OP", "the op (any that sparktape plan lists), or a value that it writes: s0.attn.q", CLI_STR,
      offsetof(words, op) },
    { "--round", "N", "the round", CLI_INT, offsetof(words, round) },
    { "--slot", "S", "of an insert's op: the slot (default: the only one)", CLI_INT, offsetof(words, slot) },
    { "--rows", "A-B", "only these rows of the step (default: all); a slot's block stays together where its rows meet",
      CLI_STR, offsetof(words, rows) },
    { "-o", "DIR", "the folder to make (default: OP.roundN)", CLI_STR, offsetof(words, out) },
};

static err_code parse_rows(const char *text, rpl_reduce_options *o, err *e)
{
    char first[24], last[24], end;
    int64_t a, b;
    o->last = -1;
    if (!text) return ERR_OK;
    int n = sscanf(text, "%23[0-9]-%23[0-9]%c", first, last, &end);
    if (n == 1 && strlen(first) == strlen(text)) memcpy(last, first, sizeof last);
    else if (n != 2) return err_set(e, ERR_ARG, "--rows: found '%.40s', wanted A or A-B", text);
    TRY(cli_int(first, "--rows", 0, INT32_MAX - 1, &a, e));
    TRY(cli_int(last, "--rows", a, INT32_MAX - 1, &b, e));
    o->first = (int32_t)a;
    o->last = (int32_t)b;
    return ERR_OK;
}

static err_code report(const rpl_reduced *r, const fmt_tape *t, const char *folder, int32_t round, bool json, err *e)
{
    if (!json) {
        printf("%s: %s (%s) of round %d, %d of %d rows, %.1f KiB%s\n", folder, r->op, r->ops, round, r->rows, r->rows_total,
               (double)r->bytes / 1024, r->bytes > LARGE_BYTES ? ", much for an issue: --rows takes fewer" : "");
        printf("%lld elements: %lld equal, %lld within their bounds, %lld illegal, %lld not judged\ncheck it: make -C %s\n",
               (long long)r->n, (long long)r->n_equal, (long long)r->n_flip, (long long)r->n_illegal,
               (long long)r->n_unjudged, folder);
        return ERR_OK;
    }
    json_t *j = json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I}", "schema",
                          CMD_SCHEMA, "type", "reduction", "tape", fmt_tape_path(t), "folder", folder, "op", r->op, "kinds",
                          r->ops, "round", (int)round, "rows", (int)r->rows, "rows_total", (int)r->rows_total, "bytes",
                          (json_int_t)r->bytes, "elements", (json_int_t)r->n, "equal", (json_int_t)r->n_equal, "flip",
                          (json_int_t)r->n_flip, "illegal", (json_int_t)r->n_illegal, "unjudged",
                          (json_int_t)r->n_unjudged);
    j = rpl_source_json(j, t);
    err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "reduce: no memory for the report");
    json_decref(j);
    return rc;
}

/* Where: --op, --round and --slot, or a reference, behind the model or with the tape in front. The reference keeps what w
 * then points to. */
static err_code choose_op(const cli_args *args, words *w, cap_reference *ref, err *e)
{
    const bool by_options = w->op || w->round >= 0 || w->slot >= 0;
    err_code rc = ERR_OK;
    if (args->count == 3) rc = cap_reference_of_arguments(args->item[0], args->item[2], ref, e);
    else if (!by_options) rc = cap_reference_of_arguments(args->item[0], NULL, ref, e);
    if (rc == ERR_ARG && !by_options && args->count == 2)
        return err_set(e, rc, "found no op and round, wanted TAPE MODEL ROUND/SLOT/VALUE with SLOT '-' for none, "
                       "TAPE:ROUND/SLOT/VALUE MODEL, or --op OP --round N");
    if (rc != ERR_OK) return rc;
    if (ref->value && by_options)
        return err_set(e, ERR_ARG, "found both %d/../%s and --op, --round or --slot, wanted one of the two", ref->round,
                       ref->value);
    if (ref->value) {
        w->op = ref->value;
        w->round = ref->round;
        w->slot = ref->slot;
    }
    if (!w->op || w->round < 0 || w->round > INT32_MAX)
        return err_set(e, ERR_ARG, "found no %s, wanted ROUND/SLOT/VALUE, or --op OP --round N", w->op ? "round" : "op");
    if (w->slot > INT32_MAX) return err_set(e, ERR_ARG, "--slot: found %lld, wanted less", (long long)w->slot);
    return ERR_OK;
}

static err_code reduce_op(const char *path, const char *model, const words *w, const cli_common *common, err *e)
{
    char folder[128];
    fmt_tape *tape = NULL;
    eng_weights *weights = NULL;
    rpl_reduce_options o = { 0 };
    rpl_reduced r;
    TRY(parse_rows(w->rows, &o, e));
    o.round = (int32_t)w->round;
    o.slot = w->slot < 0 ? FMT_TAPE_NO_SLOT : (int32_t)w->slot;
    o.op = w->op;
    snprintf(folder, sizeof folder, "%.64s.round%d", w->op, o.round);
    o.folder = w->out ? w->out : folder;
    cmd_use_threads(common);
    err_code rc = fmt_tape_open(path, &tape, e);
    if (rc == ERR_OK) rc = eng_weights_open(model, common->quiet, &weights, e);
    if (rc == ERR_OK) rc = eng_identity_check(json_object_get(fmt_tape_head(tape), "identity"), weights, e);
    if (rc == ERR_OK) rpl_warn_of_damage(tape);
    if (rc == ERR_OK) rc = rpl_reduce(tape, weights, &o, &r, e);
    if (rc == ERR_OK) rc = report(&r, tape, o.folder, o.round, common->json, e);
    if (tape) rc = rpl_say_recover(tape, rc, e);
    eng_weights_close(weights);
    fmt_tape_close(tape);
    return rc;
}

static err_code reduce(const cli_args *args, words *w, const cli_common *common, err *e)
{
    cap_reference ref = { 0 };
    err_code rc = choose_op(args, w, &ref, e);
    if (rc == ERR_OK) rc = reduce_op(ref.tape ? ref.tape : args->item[0], args->item[1], w, common, e);
    cap_reference_fini(&ref);
    return rc;
}

static const char HELP[] =
    "\nREF: ROUND/SLOT/VALUE with SLOT - for none, as show has it, with TAPE: before it or without; its rank and index\n"
    "are not looked at. TAPE:ROUND/SLOT/VALUE MODEL is enough.\n";

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    words w = { .round = -1, .slot = -1 };
    cli_common common;
    cli_args args;
    *exit_status = 0;
    TRY(cli_parse(self, argc, argv, &w, &common, &args, e));
    if (common.help) {
        cli_help(self);
        fputs(HELP, stdout);
        return ERR_OK;
    }
    return reduce(&args, &w, &common, e);
}

const cli_command CMD_REDUCE = {
    "reduce", "TAPE MODEL [REF]", "one op of one round as a folder with a C test that runs alone", OPTIONS,
    (int)COUNT_OF(OPTIONS), run,
};
