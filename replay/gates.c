#include "replay/gates.h"

#include "formats/json.h"
#include "gates_json.h" /* GATES_JSON: the text of gates.json */

#include <math.h>
#include <string.h>

static const struct { const char *key, *text; } GATES[] = {
#define X(name, key, text) { key, text },
    RPL_GATE_LIST(X)
#undef X
};
enum { FILE_BYTES_MAX = 1 << 16 };

const char *rpl_gate_key(rpl_gate g) { return GATES[g].key; }
const char *rpl_gate_text(rpl_gate g) { return GATES[g].text; }

/* Limits that object names into limit; named[g]: it does. */
static err_code read_limits(const json_t *object, const char *where, double *limit, bool *named, err *e)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object)) return err_set(e, ERR_INPUT, "%s: found no object, wanted the keys of gates.json", where);
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        int g = 0;
        while (g < RPL_GATE_COUNT && strcmp(GATES[g].key, key) != 0) g++;
        if (g == RPL_GATE_COUNT && strcmp(key, "schema") == 0 && json_integer_value(value) == 1) continue;
        if (g == RPL_GATE_COUNT)
            return err_set(e, ERR_INPUT, "%s: found key '%.64s', wanted schema 1 and %s, %s, %s, %s, %s", where, key,
                           GATES[0].key, GATES[1].key, GATES[2].key, GATES[3].key, GATES[4].key);
        limit[g] = json_is_number(value) ? json_number_value(value) : -1;
        if (!(limit[g] >= 0)) return err_set(e, ERR_INPUT, "%s: %s: wanted a number, 0 or more", where, key);
        named[g] = true;
    }
    return ERR_OK;
}

void rpl_gates_default(rpl_gates *out)
{
    bool named[RPL_GATE_COUNT] = { false };
    err e = { 0 };
    *out = (rpl_gates){ 0 };
    json_t *object = json_loads(GATES_JSON, JSON_REJECT_DUPLICATES, NULL);
    CHECK(object && read_limits(object, "gates.json", out->strict, named, &e) == ERR_OK);
    for (int g = 0; g < RPL_GATE_COUNT; g++) CHECK(named[g]);
    json_decref(object);
    memcpy(out->limit, out->strict, sizeof out->limit);
}

err_code rpl_gates_read(const char *path, rpl_gates *out, err *e)
{
    bool named[RPL_GATE_COUNT] = { false };
    json_t *object;
    rpl_gates_default(out);
    TRY(fmt_json_read(path, FILE_BYTES_MAX, &object, e));
    err_code rc = read_limits(object, path, out->limit, named, e);
    json_decref(object);
    TRY(rc);
    for (int g = 0; g < RPL_GATE_COUNT; g++)
        out->overridden[g] = named[g] && (out->limit[g] < out->strict[g] || out->limit[g] > out->strict[g]);
    snprintf(out->file, sizeof out->file, "%s", path);
    return ERR_OK;
}
