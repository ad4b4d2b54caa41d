#include <inttypes.h>

#include "base/mem.h"
#include "formats/commands.h"
#include "formats/json.h"
#include "formats/tape.h"

static err_code print_line(json_t *line, err *e)
{
    if (!line) return err_set(e, ERR_NOMEM, "no memory for the output");
    err_code rc = fmt_json_print(stdout, line, e);
    json_decref(line);
    return rc;
}

static err_code print_faults(const char *path, const fmt_tape_report *r, bool json, err *e)
{
    for (size_t i = 0; i < r->n_faults; i++) {
        const fmt_tape_fault *f = &r->faults[i];
        if (!json) printf("%s: %s\n", path, f->what);
        else TRY(print_line(json_pack("{s:i, s:s, s:I, s:I, s:o?, s:s}", "schema", 1, "path", path, "offset",
                                      (json_int_t)f->offset_bytes, "bytes", (json_int_t)f->span_bytes, "chunk",
                                      f->chunk < 0 ? NULL : json_integer(f->chunk), "fault", f->what), e));
    }
    return ERR_OK;
}

/* Nothing is wrong before the place where an unfinished tape stops: so does one that is being written look. */
static bool only_end_missing(const fmt_tape_report *r)
{
    uint64_t at = 0;
    for (size_t i = 0; i < r->n_faults; i++)
        if (r->faults[i].offset_bytes > at) at = r->faults[i].offset_bytes;
    for (size_t i = 0; i < r->n_faults; i++)
        if (r->faults[i].offset_bytes != at) return false;
    return !r->finished && r->n_chunks > 0 && r->n_lost_records == 0;
}

static const char *verdict_of(const fmt_tape_report *r)
{
    if (r->n_faults == 0) return "sound";
    if (only_end_missing(r)) return "unfinished, perhaps still being written";
    return r->n_base_records && r->n_faults == 1 ? "WITHOUT ITS BASE" : "DAMAGED";
}

err_code fmt_doctor(const char *path, bool json, int *exit_status, err *e)
{
    fmt_tape_report r;
    TRY(fmt_tape_examine(path, &r, e));
    bool sound = r.n_faults == 0;
    err_code rc = print_faults(path, &r, json, e);
    if (rc == ERR_OK && json)
        rc = print_line(json_pack("{s:i, s:s, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:s?, s:I}", "schema", 1, "path", path,
                                  "sound", sound, "finished", r.finished, "faults", (json_int_t)r.n_faults, "chunks",
                                  (json_int_t)r.n_chunks, "rounds", (json_int_t)r.n_rounds, "records",
                                  (json_int_t)r.n_records, "lost_records", (json_int_t)r.n_lost_records, "base",
                                  r.base[0] ? r.base : NULL, "without_base", (json_int_t)r.n_base_records), e);
    else if (rc == ERR_OK)
        printf("%s: %s: %" PRIu64 " chunks, %" PRIu64 " sound records in %" PRIu64 " rounds, %" PRIu64 " lost%s\n", path,
               verdict_of(&r), r.n_chunks, r.n_records, r.n_rounds, r.n_lost_records,
               sound ? "" : "; sparktape recover saves what is sound");
    if (rc == ERR_OK && !json && r.base[0]) printf("%s: stored on base %s\n", path, r.base);
    *exit_status = sound ? 0 : 1;
    fmt_tape_report_fini(&r);
    return rc;
}

typedef struct recover_options { const char *out; } recover_options;

static err_code print_loss(const char *path, const fmt_tape_loss *l, bool json, err *e)
{
    char bytes[32];
    if (json)
        return print_line(json_pack("{s:i, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:b}", "schema", 1,
                                    "path", path,
                                    "complete", l->complete, "kept_rounds", (json_int_t)l->kept_rounds, "kept_records",
                                    (json_int_t)l->kept_records, "kept_events", (json_int_t)l->kept_events, "lost_rounds",
                                    (json_int_t)l->lost_rounds, "lost_records", (json_int_t)l->lost_records, "lost_events",
                                    (json_int_t)l->lost_events, "lost_bytes", (json_int_t)l->lost_bytes, "head_lost",
                                    l->head_lost, "was_finished", l->was_finished, "newer_minor", l->newer_minor), e);
    printf("%s: kept %" PRIu64 " records in %" PRIu64 " rounds and %" PRIu64 " events; verified\n", path, l->kept_records,
           l->kept_rounds, l->kept_events);
    if (l->complete) { printf("%s: nothing is lost\n", path); return ERR_OK; }
    printf("%s: LOST %" PRIu64 " known records in %" PRIu64 " rounds, %" PRIu64 " events, %s of the file\n", path,
           l->lost_records,
           l->lost_rounds, l->lost_events, fmt_bytes_text(l->lost_bytes, bytes, sizeof bytes));
    if (!l->was_finished) printf("%s: LOST the end: the summary, and what its writer had not flushed\n", path);
    if (l->head_lost) printf("%s: LOST the head: identity and configuration are unknown\n", path);
    if (l->newer_minor) printf("%s: LOST fields of a later minor version of the format\n", path);
    return ERR_OK;
}

static err_code run_recover(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    recover_options o = { 0 };
    cli_common common;
    cli_args args;
    fmt_tape_report r;
    fmt_tape_loss lost;
    TRY(cli_parse(self, argc, argv, &o, &common, &args, e));
    *exit_status = 0;
    if (common.help) { cli_help(self); return ERR_OK; }
    if (!o.out) return err_set(e, ERR_ARG, "-o: found nothing, wanted the tape to write");
    TRY(fmt_tape_recover(args.item[0], o.out, &lost, &r, e));
    err_code rc = print_faults(args.item[0], &r, common.json, e);
    if (rc == ERR_OK) rc = print_loss(o.out, &lost, common.json, e);
    *exit_status = lost.complete ? 0 : 1;
    fmt_tape_report_fini(&r);
    return rc;
}

static const cli_option RECOVER_OPTIONS[] = {
    { "-o", "OUT", "the tape to write", CLI_NEW, offsetof(recover_options, out) },
};

const cli_command CMD_RECOVER = { "recover", "TAPE", "writes a clean tape of what is sound (exit 1 when anything is lost)",
                                  RECOVER_OPTIONS, COUNT_OF(RECOVER_OPTIONS), run_recover };
