#include "engine/dispatch.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { SCHEMA = 1, FILE_MAX = 1 << 20 };

static const char *const NAMES[ENG_VARIANTS] = { [ENG_VARIANT_SEPARATE] = "separate", [ENG_VARIANT_FUSED] = "fused" };

const char *eng_variant_name(eng_variant v) { return NAMES[v]; }

eng_dispatch eng_dispatch_all(eng_variant v)
{
    eng_dispatch d;
    memset(d.variant, (int)v, sizeof d.variant);
    return d;
}

eng_dispatch eng_dispatch_default(void) { return eng_dispatch_all((eng_variant)ENG_VARIANT_DEFAULT); }

static bool has_place(int32_t stage, int32_t rows)
{
    return stage >= 0 && stage < ENG_STAGES_MAX && rows >= 1 && rows <= ENG_DISPATCH_ROWS;
}

eng_variant eng_dispatch_variant(const eng_dispatch *d, int32_t stage, int32_t rows)
{
    return has_place(stage, rows) ? (eng_variant)d->variant[stage][rows - 1] : (eng_variant)ENG_VARIANT_DEFAULT;
}

void eng_dispatch_set(eng_dispatch *d, int32_t stage, int32_t rows, eng_variant v)
{
    CHECK(has_place(stage, rows));
    d->variant[stage][rows - 1] = (uint8_t)v;
}

err_code eng_dispatch_path(const char *folder, char *out, size_t bytes, err *e)
{
    const int n = snprintf(out, bytes, "%s/dispatch.json", folder);
    if (n >= 0 && (size_t)n < bytes) return ERR_OK;
    return err_set(e, ERR_ARG, "%.64s...: path longer than %zu bytes", folder, bytes);
}

/* ---- reading ---- */

/* A value as one short word for a message. */
static const char *found_text(const json_t *v, char buf[48])
{
    char *text = v ? fmt_json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    snprintf(buf, 48, "%.40s%s", v ? text ? text : "?" : "nothing", text && strlen(text) > 40 ? "..." : "");
    free(text);
    return buf;
}

static err_code read_int(const json_t *object, const char *where, const char *key, int32_t lo, int32_t hi, int32_t *out,
                         err *e)
{
    const json_t *v = json_object_get(object, key);
    const json_int_t i = json_integer_value(v);
    char found[48];
    if (!json_is_integer(v) || i < lo || i > hi)
        return err_set(e, ERR_INPUT, "%s: key %s: found %s, wanted an integer from %d to %d", where, key,
                       found_text(v, found), lo, hi);
    *out = (int32_t)i;
    return ERR_OK;
}

static err_code read_variant(const json_t *object, const char *where, eng_variant *out, err *e)
{
    const json_t *v = json_object_get(object, "variant");
    char found[48];
    for (int i = 0; i < ENG_VARIANTS; i++)
        if (json_is_string(v) && strcmp(json_string_value(v), NAMES[i]) == 0) {
            *out = (eng_variant)i;
            return ERR_OK;
        }
    return err_set(e, ERR_INPUT, "%s: key variant: found %s, wanted \"%s\" or \"%s\"", where, found_text(v, found),
                   NAMES[ENG_VARIANT_SEPARATE], NAMES[ENG_VARIANT_FUSED]);
}

static err_code read_entry(const json_t *entry, const char *where, eng_dispatch *d, uint64_t seen[ENG_STAGES_MAX], err *e)
{
    int32_t stage, rows;
    eng_variant variant = ENG_VARIANT_SEPARATE;
    char found[48];
    if (!json_is_object(entry))
        return err_set(e, ERR_INPUT, "%s: found %s, wanted an object", where, found_text(entry, found));
    TRY(read_int(entry, where, "stage", 0, ENG_STAGES_MAX - 1, &stage, e));
    TRY(read_int(entry, where, "rows", 1, ENG_DISPATCH_ROWS, &rows, e));
    TRY(read_variant(entry, where, &variant, e));
    _Static_assert(ENG_DISPATCH_ROWS <= 64, "a bit for each number of rows");
    const uint64_t bit = UINT64_C(1) << (rows - 1);
    if (seen[stage] & bit)
        return err_set(e, ERR_INPUT, "%s: found stage %d, rows %d again, wanted them once", where, stage, rows);
    seen[stage] |= bit;
    eng_dispatch_set(d, stage, rows, variant);
    return ERR_OK;
}

static err_code read_word(const json_t *object, const char *path, const char *key, const char *wanted, const char **out,
                          err *e)
{
    const json_t *v = json_object_get(object, key);
    char found[48];
    *out = json_string_value(v);
    if (!*out || !**out)
        return err_set(e, ERR_INPUT, "%s: key %s: found %s, wanted %s", path, key, found_text(v, found), wanted);
    return ERR_OK;
}

static size_t card_length(const char *device) { return strcspn(device, ","); }

/* device: the one that the file is of; borrowed from object. */
static err_code parse(const json_t *object, const char *path, eng_dispatch *out, const char **device, err *e)
{
    static const char ARM_WANTED[] = "an arm that may run its experts as one launch";
    eng_dispatch d = eng_dispatch_default();
    uint64_t seen[ENG_STAGES_MAX] = { 0 };
    const char *arm;
    int32_t schema;
    char found[48], where[ERR_MSG_BYTES];
    if (!json_is_object(object))
        return err_set(e, ERR_INPUT, "%s: found %s, wanted an object", path, found_text(object, found));
    TRY(read_int(object, path, "schema", SCHEMA, SCHEMA, &schema, e));
    TRY(read_word(object, path, "device", "a card's name", device, e));
    TRY(read_word(object, path, "arm", ARM_WANTED, &arm, e));
    const eng_arm *known = eng_arm_find(arm);
    if (!known || !known->kx2)
        return err_set(e, ERR_INPUT, "%s: key arm: found \"%.64s\", wanted %s", path, arm, ARM_WANTED);
    const json_t *experts = json_object_get(object, "experts");
    if (!json_is_array(experts))
        return err_set(e, ERR_INPUT, "%s: key experts: found %s, wanted an array", path, found_text(experts, found));
    for (size_t i = 0; i < json_array_size(experts); i++) {
        snprintf(where, sizeof where, "%.300s: experts[%zu]", path, i);
        TRY(read_entry(json_array_get(experts, i), where, &d, seen, e));
    }
    *out = d;
    return ERR_OK;
}

err_code eng_dispatch_read(const char *path, const char *device, eng_dispatch *out, char *note, err *e)
{
    json_t *object;
    eng_dispatch d;
    const char *of = "";
    *out = eng_dispatch_default();
    if (note) note[0] = 0;
    if (access(path, F_OK) != 0 && errno == ENOENT) return ERR_OK;
    TRY(fmt_json_read(path, FILE_MAX, &object, e));
    err_code rc = parse(object, path, &d, &of, e);
    const size_t n = card_length(device);
    if (rc == ERR_OK && strlen(of) == n && memcmp(of, device, n) == 0) *out = d;
    else if (rc == ERR_OK && note) {
        err said; /* err_set shows no control characters of the file */
        (void)err_set(&said, ERR_OK, "%s: found a table of %.64s, wanted one of %.*s (sparktape bench --tune): not used",
                      path, of, (int)n, device);
        memcpy(note, said.msg, sizeof said.msg);
    }
    json_decref(object);
    return rc;
}

/* ---- writing ---- */

static json_t *entry_json(const eng_dispatch_entry *x)
{
    json_t *us = json_object();
    for (int v = 0; v < ENG_VARIANTS; v++) fmt_json_put(&us, NAMES[v], fmt_json_real(x->us[v]));
    return json_pack("{s:i, s:i, s:s, s:o}", "stage", (int)x->stage, "rows", (int)x->rows, "variant", NAMES[x->variant],
                     "us", us);
}

err_code eng_dispatch_write(const char *path, const char *device, const char *arm, int32_t tp,
                            const eng_dispatch_entry *entries, int32_t n, err *e)
{
    json_t *experts = json_array();
    for (int32_t i = 0; i < n; i++) fmt_json_add(&experts, entry_json(&entries[i]));
    json_t *j = json_pack("{s:i, s:s%, s:s, s:i, s:o}", "schema", SCHEMA, "device", device, card_length(device), "arm", arm,
                          "tp", (int)tp, "experts", experts);
    err_code rc = j ? fmt_json_write(path, j, e) : err_set(e, ERR_NOMEM, "%s: no memory for the table", path);
    json_decref(j);
    return rc;
}
