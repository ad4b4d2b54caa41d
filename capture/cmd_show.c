#include "base/mem.h"
#include "capture/commands.h"
#include "capture/joined.h"
#include "capture/reference.h"
#include "formats/json.h"

#include <inttypes.h>
#include <math.h>

enum {
    SHOWN = 8,        /* rows and columns, unless asked for more */
    TEXT_BYTES = 352, /* any double, however it is printed */
};

typedef struct options { int64_t rows, columns; } options;

/* The record meant: the given rank's, else the first of that name. */
static err_code find(const fmt_tape *t, const cap_reference *r, size_t *out, err *e)
{
    size_t first, n;
    bool other_slot = false;
    fmt_tape_round_span(t, r->round, &first, &n);
    if (n == 0) return err_set(e, ERR_INPUT, "%s: round %d is not on the tape", r->tape, r->round);
    for (size_t i = first; i < first + n; i++) {
        fmt_tape_record rec;
        fmt_tape_at(t, i, &rec);
        if (rec.key.round != r->round || strcmp(rec.key.name, r->value) != 0) continue;
        if (rec.key.slot == r->slot && (r->rank < 0 || rec.key.rank == r->rank)) { *out = i; return ERR_OK; }
        other_slot = true;
    }
    return err_set(e, ERR_INPUT, "%s: round %d has no %s%s; sparktape ls --records lists what there is", r->tape, r->round,
                   r->value, other_slot ? " of that slot and rank" : "");
}

/* ---- what is shown ---- */

/* One record, or the ranks' records of a value put together. */
typedef struct view {
    fmt_tape_record record; /* put together: rank FMT_TAPE_NO_RANK; shape, hash and statistics of the whole */
    cap_value value;        /* its data may still be NULL for one record */
    const char *how;        /* they were put together; NULL: one record */
} view;

/* Joins the parts of s->record's value, as diff and the browser have it. */
static err_code join(const fmt_tape *t, view *s, err *e)
{
    static const char *const HOW[] = { "the lowest rank's copy", "shards joined", "summed in rank order" };
    fmt_tape_record *r = &s->record, part;
    fmt_tape_key key = r->key;
    if (cap_joined_get(t, &key, &s->value, e) != ERR_OK)
        return err_wrap(e, "putting %d ranks together (@rRANK shows one alone)", r->n_ranks);
    s->how = HOW[s->value.place];
    r->key.rank = FMT_TAPE_NO_RANK;
    for (key.rank = 0; key.rank < s->value.n_ranks; key.rank++) {
        int64_t i = fmt_tape_find(t, &key);
        if (i < 0) continue; /* a missing copy, which the others stand for */
        fmt_tape_at(t, (size_t)i, &part);
        if (r->key.rank >= 0) r->stored_bytes += part.stored_bytes, r->n_parts += part.n_parts;
        else *r = part;
        if (s->value.place == FMT_PLACE_REPLICATED) break; /* copies are stored once */
    }
    r->key.rank = FMT_TAPE_NO_RANK;
    r->tensor = s->value.tensor;
    r->raw_bytes = fmt_tensor_bytes(&r->tensor);
    r->hash = fmt_hash64(r->tensor.data, r->raw_bytes);
    fmt_stats_of(&r->tensor, &r->stats);
    return ERR_OK;
}

/* ---- elements ---- */

/* Bits of the exponent and of the mantissa; {0, 0}: an integer. */
static void float_fields(fmt_dtype d, int *exponent, int *mantissa)
{
    static const struct { int exponent, mantissa; } FIELDS[FMT_DTYPE_COUNT] = {
        [FMT_DTYPE_F64] = { 11, 52 }, [FMT_DTYPE_F32] = { 8, 23 }, [FMT_DTYPE_BF16] = { 8, 7 }, [FMT_DTYPE_F16] = { 5, 10 },
        [FMT_DTYPE_F8] = { 4, 3 }, [FMT_DTYPE_F8_E5M2] = { 5, 2 }, [FMT_DTYPE_E8M0] = { 8, 0 },
    };
    *exponent = FIELDS[d].exponent;
    *mantissa = FIELDS[d].mantissa;
}

typedef struct element {
    uint64_t bits;
    int bytes;
    bool is_float, is_signed;
    int sign, exponent, exponent_bits, mantissa_bits, bias;
    uint64_t mantissa;
    double value; /* of a float */
} element;

static element element_at(fmt_dtype d, const uint8_t *data, uint64_t i)
{
    element x = { .bytes = (int)fmt_dtype_bytes(d) };
    for (int b = x.bytes - 1; b >= 0; b--) x.bits = x.bits << 8 | data[i * (uint64_t)x.bytes + (uint64_t)b];
    x.is_signed = d == FMT_DTYPE_I8 || d == FMT_DTYPE_I16 || d == FMT_DTYPE_I32 || d == FMT_DTYPE_I64;
    float_fields(d, &x.exponent_bits, &x.mantissa_bits);
    if (!x.exponent_bits) return x;
    x.is_float = true;
    x.bias = (1 << (x.exponent_bits - 1)) - 1;
    x.exponent = (int)(x.bits >> x.mantissa_bits & ((1u << x.exponent_bits) - 1));
    x.mantissa = x.bits & (((uint64_t)1 << x.mantissa_bits) - 1);
    x.sign = (int)(x.bits >> (x.exponent_bits + x.mantissa_bits) & 1);
    int top = (1 << x.exponent_bits) - 1;
    bool special = x.exponent == top; /* e4m3 has no infinity and only one NaN; e8m0 no infinity, no zero, no subnormal */
    if (d == FMT_DTYPE_F8) special = special && x.mantissa == 7;
    if (special) x.value = x.mantissa || d == FMT_DTYPE_E8M0 ? (double)NAN : (double)INFINITY;
    else if (x.exponent == 0 && d != FMT_DTYPE_E8M0) x.value = ldexp((double)x.mantissa, 1 - x.bias - x.mantissa_bits);
    else x.value = ldexp((double)(x.mantissa + ((uint64_t)1 << x.mantissa_bits)), x.exponent - x.bias - x.mantissa_bits);
    if (x.sign) x.value = -x.value;
    return x;
}

/* Decimal digits that tell any two values of the format apart. */
static int digits(const element *x) { return x->mantissa_bits * 301 / 1000 + 2; }

static const char *decimal(const element *x, int precision, char *buf, size_t n)
{
    int shift = 64 - 8 * x->bytes;
    if (x->is_float) snprintf(buf, n, "%.*g", precision < 17 ? precision : 17, x->value);
    else if (x->is_signed) snprintf(buf, n, "%" PRId64, (int64_t)(x->bits << shift) >> shift);
    else snprintf(buf, n, "%" PRIu64, x->bits);
    return buf;
}

static json_t *element_json(const element *x)
{
    int shift = 64 - 8 * x->bytes;
    if (x->is_float) return fmt_json_real(x->value);
    return json_integer(x->is_signed ? (int64_t)(x->bits << shift) >> shift : (json_int_t)x->bits);
}

/* ---- output ---- */

static const char *const PLACE[] = { "replicated", "sharded", "partial" };
static const char *const TIER[] = { "tensor", "stats", "hash" };

/* "3/0/s0.attn_out@r1" */
static const char *record_text(const fmt_tape_key *key, char *buf, size_t n)
{
    char slot[16] = "-", rank[16] = "";
    if (key->slot != FMT_TAPE_NO_SLOT) snprintf(slot, sizeof slot, "%d", key->slot);
    if (key->rank != FMT_TAPE_NO_RANK) snprintf(rank, sizeof rank, "@r%d", key->rank);
    snprintf(buf, n, "%d/%s/%s%s", key->round, slot, key->name, rank);
    return buf;
}

static void print_facts(const cap_reference *ref, const view *s)
{
    const fmt_tape_record *r = &s->record;
    char key[FMT_TAPE_NAME_BYTES + 48], type[128];
    printf("%s:%s\n", ref->tape, record_text(&r->key, key, sizeof key));
    printf("%s, %s", fmt_tensor_text(&r->tensor, type, sizeof type), PLACE[r->place]);
    if (r->place == FMT_PLACE_SHARDED) printf(" along axis %d", r->axis);
    printf(", %d rank%s, kept as %s", r->n_ranks, r->n_ranks == 1 ? "" : "s", TIER[r->tier]);
    if (s->how) printf("; %s", s->how);
    if (s->value.ranks_differ) printf(", rank %d's differs", s->value.ranks_differ);
    if (r->has_digest) printf("\ndigest %016" PRIx64, r->digest);
    else printf("\nhash %016" PRIx64, r->hash);
    printf(", %" PRIu64 " bytes, %" PRIu64 " stored in %d part%s, chunk at byte %" PRIu64 "\n",
           r->raw_bytes, r->stored_bytes, r->n_parts, r->n_parts == 1 ? "" : "s", r->first_chunk_offset);
    if (r->tier != FMT_TIER_HASH)
        printf("min %.9g  max %.9g  rms %.9g  nan %" PRIu64 "  inf %" PRIu64 "  zero %" PRIu64 "  denormal %" PRIu64 "\n",
               r->stats.min, r->stats.max, r->stats.rms, r->stats.n_nan, r->stats.n_inf, r->stats.n_zero,
               r->stats.n_denormal);
}

static json_t *facts_json(const cap_reference *ref, const view *s)
{
    const fmt_tape_record *r = &s->record;
    const fmt_stats *x = &r->stats;
    char key[FMT_TAPE_NAME_BYTES + 48], hash[20];
    json_t *shape = json_array();
    for (int d = 0; d < r->tensor.ndim; d++) json_array_append_new(shape, json_integer(r->tensor.shape[d]));
    snprintf(hash, sizeof hash, "%016" PRIx64, r->has_digest ? r->digest : r->hash);
    json_t *line = json_pack("{s:i, s:s, s:s, s:s, s:o, s:s, s:i, s:i, s:s, s:I, s:I, s:s}", "schema", 1,
                             "tape", ref->tape, "ref", record_text(&r->key, key, sizeof key),
                             "dtype", fmt_dtype_name(r->tensor.dtype), "shape", shape, "place", PLACE[r->place],
                             "axis", r->axis, "ranks", r->n_ranks, "tier", TIER[r->tier],
                             "raw_bytes", (json_int_t)r->raw_bytes, "stored_bytes", (json_int_t)r->stored_bytes,
                             r->has_digest ? "digest" : "hash", hash);
    if (line && s->how) json_object_set_new(line, "joined", json_string(s->how));
    if (line && s->value.ranks_differ) json_object_set_new(line, "rank_differs", json_integer(s->value.ranks_differ));
    if (line && r->tier != FMT_TIER_HASH)
        json_object_set_new(line, "stats",
                            json_pack("{s:o, s:o, s:o, s:I, s:I, s:I, s:I}", "min", fmt_json_real(x->min),
                                      "max", fmt_json_real(x->max), "rms", fmt_json_real(x->rms),
                                      "nan", (json_int_t)x->n_nan, "inf", (json_int_t)x->n_inf,
                                      "zero", (json_int_t)x->n_zero, "denormal", (json_int_t)x->n_denormal));
    return line;
}

/* Row-major place of ref's index. ERR_ARG: it does not fit the shape. */
static err_code place_of(const cap_reference *ref, const fmt_tensor *t, uint64_t *at, err *e)
{
    char type[128];
    bool fits = ref->n_index == t->ndim;
    *at = 0;
    for (int d = 0; d < t->ndim && fits; d++) {
        fits = ref->index[d] < t->shape[d];
        *at = *at * (uint64_t)t->shape[d] + (uint64_t)ref->index[d];
    }
    if (fits) return ERR_OK;
    return err_set(e, ERR_ARG, "%s: found an index of %d numbers outside %s, wanted one inside", ref->value, ref->n_index,
                   fmt_tensor_text(t, type, sizeof type));
}

static void print_element(const element *x, json_t *line)
{
    char text[TEXT_BYTES], hex[24];
    snprintf(hex, sizeof hex, "0x%0*" PRIx64, 2 * x->bytes, x->bits);
    decimal(x, x->bytes == 8 ? 17 : 9, text, sizeof text); /* exact enough to type back */
    if (line) {
        json_t *out = json_pack("{s:o, s:s}", "value", element_json(x), "hex", hex);
        if (x->is_float) {
            json_object_set_new(out, "sign", json_integer(x->sign));
            json_object_set_new(out, "exponent", json_integer(x->exponent));
            json_object_set_new(out, "mantissa", json_integer((json_int_t)x->mantissa));
        }
        json_object_set_new(line, "element", out);
        return;
    }
    printf("%s  %s", text, hex);
    if (x->is_float)
        printf("  sign %d  exponent %d (2^%d)  mantissa 0x%" PRIx64 " of %d bits", x->sign, x->exponent,
               x->exponent == 0 && x->mantissa_bits ? 1 - x->bias : x->exponent - x->bias, x->mantissa, x->mantissa_bits);
    printf("\n");
}

static void print_rows(const fmt_tensor *t, const uint8_t *data, const options *o, json_t *line)
{
    uint64_t width = t->ndim ? (uint64_t)t->shape[t->ndim - 1] : 1, elems = (uint64_t)fmt_tensor_elems(t);
    uint64_t rows = width ? elems / width : 0, shown_rows = rows < (uint64_t)o->rows ? rows : (uint64_t)o->rows;
    uint64_t shown = width < (uint64_t)o->columns ? width : (uint64_t)o->columns;
    json_t *out = json_array();
    for (uint64_t r = 0; r < shown_rows; r++) {
        json_t *row = json_array();
        if (!line) printf("%8" PRIu64 " ", r);
        for (uint64_t c = 0; c < shown; c++) {
            element x = element_at(t->dtype, data, r * width + c);
            char text[TEXT_BYTES];
            if (line) json_array_append_new(row, element_json(&x));
            else printf(" %12s", decimal(&x, digits(&x) < 6 ? digits(&x) : 6, text, sizeof text));
        }
        if (!line) printf(shown < width ? " ...\n" : "\n");
        json_array_append_new(out, row);
    }
    if (!line && shown_rows < rows) printf("     ... %" PRIu64 " more rows of %" PRIu64 "\n", rows - shown_rows, width);
    if (line) json_object_set(line, "rows", out);
    json_decref(out);
}

/* The digests of the rows, where only digests were kept. line: NULL prints text. */
static err_code show_digests(const fmt_tape *t, size_t i, const fmt_tape_record *r, const options *o, json_t *line, err *e)
{
    uint64_t n = r->n_digest_rows, shown = n < (uint64_t)o->rows ? n : (uint64_t)o->rows;
    if (n == 0) return ERR_OK;
    uint64_t *row = mem_alloc((size_t)n, sizeof *row);
    json_t *out = json_array();
    err_code rc = row && out ? fmt_tape_digest_rows(t, i, row, n, e)
                             : err_set(e, ERR_NOMEM, "no memory for %" PRIu64 " digests", n);
    for (uint64_t k = 0; k < shown && rc == ERR_OK; k++) {
        char text[20];
        snprintf(text, sizeof text, "%016" PRIx64, row[k]);
        if (line) json_array_append_new(out, json_string(text));
        else printf("%8" PRIu64 "  row digest %s\n", k, text);
    }
    if (rc == ERR_OK && !line && shown < n) printf("     ... %" PRIu64 " more rows\n", n - shown);
    if (rc == ERR_OK && line) json_object_set(line, "row_digests", out);
    json_decref(out);
    free(row);
    return rc;
}

/* The value's facts, then the element meant, or rows. line: NULL prints text. */
static err_code show_value(const fmt_tape *t, size_t i, const cap_reference *ref, const options *o, view *s, json_t *line,
                           err *e)
{
    uint64_t at = 0;
    const fmt_tensor *v = &s->value.tensor;
    if (ref->indexed) TRY(place_of(ref, &s->record.tensor, &at, e));
    if (!line) print_facts(ref, s);
    if (s->record.tier != FMT_TIER_TENSOR && !ref->indexed) return show_digests(t, i, &s->record, o, line, e);
    if (!v->data) TRY(cap_record_get(t, i, &s->value, e));
    if (!ref->indexed) {
        print_rows(v, v->data, o, line);
        return ERR_OK;
    }
    element x = element_at(v->dtype, v->data, at);
    print_element(&x, line);
    return ERR_OK;
}

static err_code show(const fmt_tape *t, const cap_reference *ref, const options *o, bool json, err *e)
{
    size_t i = 0;
    view s = { 0 };
    json_t *line = NULL;
    TRY(find(t, ref, &i, e));
    fmt_tape_at(t, i, &s.record);
    bool joins = ref->rank < 0 && s.record.key.rank >= 0 && s.record.n_ranks > 1 && s.record.tier == FMT_TIER_TENSOR;
    err_code rc = joins ? join(t, &s, e) : ERR_OK;
    if (rc == ERR_OK && json && !(line = facts_json(ref, &s))) rc = err_set(e, ERR_NOMEM, "%s: no memory", ref->tape);
    if (rc == ERR_OK) rc = show_value(t, i, ref, o, &s, line, e);
    if (rc == ERR_OK && json) rc = fmt_json_print(stdout, line, e);
    json_decref(line);
    cap_value_fini(&s.value);
    return rc;
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    options o = { .rows = SHOWN, .columns = SHOWN };
    cli_common common;
    cli_args args;
    cap_reference ref = { 0 };
    fmt_tape *t = NULL;
    TRY(cli_parse(self, argc, argv, &o, &common, &args, e));
    *exit_status = 0;
    if (common.help) { cli_help(self); return ERR_OK; }
    if (o.rows < 0 || o.columns < 0) return err_set(e, ERR_ARG, "--rows and --columns: wanted 0 or more");
    err_code rc = cap_reference_of_arguments(args.item[0], args.count > 1 ? args.item[1] : NULL, &ref, e);
    if (rc == ERR_OK) rc = fmt_tape_open(ref.tape, &t, e);
    if (rc == ERR_OK) rc = show(t, &ref, &o, common.json, e);
    fmt_tape_close(t);
    cap_reference_fini(&ref);
    return rc;
}

static const cli_option OPTIONS[] = {
    { "--rows", "N", "rows to print (default 8)", CLI_INT, offsetof(options, rows) },
    { "--columns", "N", "columns to print (default 8)", CLI_INT, offsetof(options, columns) },
};

const cli_command CMD_SHOW = { "show", "REF [TAPE]",
                               "one value, one rank's part, or one element: TAPE:ROUND/SLOT/VALUE[@rRANK][I,J]", OPTIONS,
                               COUNT_OF(OPTIONS), run };
