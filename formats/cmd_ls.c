#include <inttypes.h>

#include "formats/commands.h"
#include "formats/tape_reader.h"

typedef struct options { bool records; } options;

/* One value name over the whole tape. */
typedef struct total {
    uint64_t records, raw, stored, nan, inf;
    int32_t round_lo, round_hi;
    double min, max;
    bool stats;              /* at least one record has min and max */
    fmt_tensor tensor;       /* of the first record; a dimension that varies is -1 */
    bool dtype_varies, ndim_varies;
    const fmt_type *seen;    /* the type added last */
} total;

static void add_type(total *a, const fmt_tensor *t)
{
    if (a->records == 0) a->tensor = *t;
    if (a->tensor.dtype != t->dtype) a->dtype_varies = true;
    if (a->tensor.ndim != t->ndim) a->ndim_varies = true;
    for (int d = 0; d < t->ndim && !a->ndim_varies; d++)
        if (a->tensor.shape[d] != t->shape[d]) a->tensor.shape[d] = -1;
}

/* Straight from the columns: a tape has hundreds of thousands of rows, and building a record of each would cost more than
 * reading the page. */
static void add_page(total *totals, const fmt_page *p)
{
    for (uint32_t r = 0; r < p->rows; r++) {
        total *a = &totals[p->names[fmt_page_u32(p, FMT_COLUMN_NAME, r)]];
        const fmt_type *type = &p->types[fmt_page_u32(p, FMT_COLUMN_TYPE, r)];
        int32_t round = fmt_page_i32(p, FMT_COLUMN_ROUND, r);
        if (a->seen != type) add_type(a, &type->tensor);
        a->seen = type;
        if (a->records == 0 || round < a->round_lo) a->round_lo = round;
        if (a->records == 0 || round > a->round_hi) a->round_hi = round;
        a->records++;
        fmt_tier tier = (fmt_tier)fmt_page_u8(p, FMT_COLUMN_TIER, r);
        if (tier == FMT_TIER_TENSOR) a->raw += type->bytes;
        a->stored += fmt_page_u64(p, FMT_COLUMN_STORED, r);
        if (tier == FMT_TIER_HASH) continue;
        double min = fmt_page_f64(p, FMT_COLUMN_MIN, r), max = fmt_page_f64(p, FMT_COLUMN_MAX, r);
        if (!a->stats || min < a->min) a->min = min;
        if (!a->stats || max > a->max) a->max = max;
        a->stats = true;
        a->nan += fmt_page_u64(p, FMT_COLUMN_NAN, r);
        a->inf += fmt_page_u64(p, FMT_COLUMN_INF, r);
    }
}

static const char *type_text(const total *a, char *buf, size_t n)
{
    size_t at = (size_t)snprintf(buf, n, "%s [", a->dtype_varies ? "mixed" : fmt_dtype_name(a->tensor.dtype));
    for (int d = 0; d < a->tensor.ndim && !a->ndim_varies && at < n; d++)
        at += (size_t)(a->tensor.shape[d] < 0 ? snprintf(buf + at, n - at, "%s*", d ? ", " : "")
                                              : snprintf(buf + at, n - at, "%s%" PRId64, d ? ", " : "",
                                                         a->tensor.shape[d]));
    if (a->ndim_varies && at < n) at += (size_t)snprintf(buf + at, n - at, "...");
    if (at < n) snprintf(buf + at, n - at, "]");
    return buf;
}

static json_t *shape_json(const total *a)
{
    json_t *shape = json_array();
    for (int d = 0; d < a->tensor.ndim && !a->ndim_varies; d++)
        json_array_append_new(shape, a->tensor.shape[d] < 0 ? json_null() : json_integer(a->tensor.shape[d]));
    return shape;
}

static err_code print_line(json_t *line, err *e)
{
    if (!line) return err_set(e, ERR_NOMEM, "no memory for the output");
    err_code rc = fmt_json_print(stdout, line, e);
    json_decref(line);
    return rc;
}

static err_code print_total(const char *name, const total *a, int name_width, bool json, err *e)
{
    if (json)
        return print_line(json_pack("{s:i, s:s, s:s, s:o, s:I, s:i, s:i, s:I, s:I, s:o?, s:o?, s:I, s:I}", "schema", 1,
                                    "value",
                                    name, "dtype", a->dtype_varies ? "mixed" : fmt_dtype_name(a->tensor.dtype), "shape",
                                    shape_json(a), "records", (json_int_t)a->records, "first_round", a->round_lo,
                                    "last_round", a->round_hi, "raw_bytes", (json_int_t)a->raw, "stored_bytes",
                                    (json_int_t)a->stored, "min", a->stats ? fmt_json_real(a->min) : NULL, "max",
                                    a->stats ? fmt_json_real(a->max) : NULL, "nan", (json_int_t)a->nan, "inf",
                                    (json_int_t)a->inf), e);
    char type[128], raw[32], stored[32], rounds[32];
    if (a->round_lo == a->round_hi) snprintf(rounds, sizeof rounds, "%d", a->round_lo);
    else snprintf(rounds, sizeof rounds, "%d-%d", a->round_lo, a->round_hi);
    printf("%-*s %-26s %7" PRIu64 " %11s %9s %9s", name_width, name, type_text(a, type, sizeof type), a->records, rounds,
           fmt_bytes_text(a->raw, raw, sizeof raw), fmt_bytes_text(a->stored, stored, sizeof stored));
    if (a->stats) printf(" %12.5g %12.5g %6" PRIu64 "\n", a->min, a->max, a->nan);
    else printf(" %12s %12s %6s\n", "-", "-", "-");
    return ERR_OK;
}

static err_code list_values(const fmt_tape *t, const char *pattern, bool json, err *e)
{
    const fmt_index *ix = fmt_tape_index(t);
    total *totals = mem_alloc(ix->names.n, sizeof *totals);
    if (!totals) return err_set(e, ERR_NOMEM, "%s: no memory for %zu names", fmt_tape_path(t), ix->names.n);
    for (size_t k = 0; k < ix->n_pages; k++) add_page(totals, &ix->pages[k]);
    int width = 5;
    err_code rc = ERR_OK;
    for (size_t i = 0; i < ix->names.n; i++) {
        if (pattern && !cli_match(pattern, ix->names.text[i])) totals[i].records = 0;
        if (totals[i].records && (int)strlen(ix->names.text[i]) > width) width = (int)strlen(ix->names.text[i]);
    }
    if (!json)
        printf("%-*s %-26s %7s %11s %9s %9s %12s %12s %6s\n", width, "value", "type", "records", "rounds", "raw", "stored",
               "min", "max", "nan");
    for (size_t i = 0; i < ix->names.n && rc == ERR_OK; i++)
        if (totals[i].records) rc = print_total(ix->names.text[i], &totals[i], width, json, e);
    free(totals);
    return rc;
}

static const char *const PLACE[] = { "replicated", "sharded", "partial" };
static const char *const TIER[] = { "tensor", "stats", "hash" };

static err_code print_record(const fmt_tape_record *r, bool json, err *e)
{
    bool stats = r->tier != FMT_TIER_HASH;
    char key[FMT_TAPE_NAME_BYTES + 48], type[128], raw[32], stored[32], hash[24];
    snprintf(hash, sizeof hash, "%016" PRIx64, r->has_digest ? r->digest : r->hash);
    if (json) {
        json_t *shape = json_array();
        for (int d = 0; d < r->tensor.ndim; d++) json_array_append_new(shape, json_integer(r->tensor.shape[d]));
        json_t *line = json_pack(
            "{s:i, s:i, s:o?, s:o?, s:s, s:s, s:o, s:s, s:i, s:i, s:s, s:I, s:I, s:s, s:o?, s:o?, s:I, s:I}", "schema", 1,
            "round", r->key.round, "slot", r->key.slot < 0 ? NULL : json_integer(r->key.slot),
            "rank", r->key.rank < 0 ? NULL : json_integer(r->key.rank), "value", r->key.name,
            "dtype", fmt_dtype_name(r->tensor.dtype), "shape", shape, "place", PLACE[r->place], "axis", r->axis,
            "ranks", r->n_ranks, "tier", TIER[r->tier], "raw_bytes", (json_int_t)r->raw_bytes,
            "stored_bytes", (json_int_t)r->stored_bytes, r->has_digest ? "digest" : "hash", hash,
            "min", stats ? fmt_json_real(r->stats.min) : NULL, "max", stats ? fmt_json_real(r->stats.max) : NULL,
            "nan", (json_int_t)r->stats.n_nan, "inf", (json_int_t)r->stats.n_inf);
        if (line && r->has_digest) json_object_set_new(line, "digest_rows", json_integer((json_int_t)r->n_digest_rows));
        return print_line(line, e);
    }
    if (r->has_digest) snprintf(hash, sizeof hash, "d:%016" PRIx64, r->digest); /* no hash: the two do not compare */
    printf("%-36s %-26s %-10s %-6s %9s %9s %-18s", fmt_tape_key_text(&r->key, key, sizeof key),
           fmt_tensor_text(&r->tensor, type, sizeof type), PLACE[r->place], TIER[r->tier],
           fmt_bytes_text(r->raw_bytes, raw, sizeof raw), fmt_bytes_text(r->stored_bytes, stored, sizeof stored), hash);
    if (stats) printf(" %12.5g %12.5g %6" PRIu64 "\n", r->stats.min, r->stats.max, r->stats.n_nan);
    else printf(" %12s %12s %6s\n", "-", "-", "-");
    return ERR_OK;
}

static err_code list_records(const fmt_tape *t, const char *pattern, bool json, err *e)
{
    if (!json)
        printf("%-36s %-26s %-10s %-6s %9s %9s %-18s %12s %12s %6s\n", "record", "type", "place", "tier", "raw", "stored",
               "hash or d:digest", "min", "max", "nan");
    for (size_t i = 0; i < fmt_tape_count(t); i++) {
        fmt_tape_record r;
        fmt_tape_at(t, i, &r);
        if (!pattern || cli_match(pattern, r.key.name)) TRY(print_record(&r, json, e));
    }
    return ERR_OK;
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    options o = { 0 };
    cli_common common;
    cli_args args;
    fmt_tape *t;
    TRY(cli_parse(self, argc, argv, &o, &common, &args, e));
    *exit_status = 0;
    if (common.help) { cli_help(self); return ERR_OK; }
    const char *pattern = args.count > 1 ? args.item[1] : NULL;
    TRY(fmt_tape_open(args.item[0], &t, e));
    err_code rc = o.records ? list_records(t, pattern, common.json, e) : list_values(t, pattern, common.json, e);
    fmt_tape_close(t);
    return rc;
}

static const cli_option OPTIONS[] = {
    { "--records", NULL, "one line per record instead of one per value", CLI_FLAG, offsetof(options, records) },
};

const cli_command CMD_LS = { "ls", "TAPE [PATTERN]",
                             "the values of a tape (PATTERN: names with * and ?, separated by commas)",
                             OPTIONS, COUNT_OF(OPTIONS), run };
