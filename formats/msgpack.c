/* JSON values to msgpack and back.
 *
 * Packing is msgpack-c's. Unpacking is written out here: the library allocates an array's announced length before it has
 * seen one element, so a ten-byte input could ask for gigabytes. Here a length is believed only as far as input is left. */
#include "formats/json.h"

#include <inttypes.h>
#include <math.h>
#include <msgpack.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

enum { DEPTH_MAX = 16 }; /* containers inside each other; a tape's heads need four */

static uint16_t be16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
static uint32_t be32(const uint8_t *p) { return (uint32_t)be16(p) << 16 | be16(p + 2); }
static uint64_t be64(const uint8_t *p) { return (uint64_t)be32(p) << 32 | be32(p + 4); }

/* ---- packing ---- */

static err_code pack_text(msgpack_packer *pk, const char *text, size_t n, err *e)
{
    if (n > UINT32_MAX) return err_set(e, ERR_ARG, "msgpack: found a string of %zu bytes, wanted at most 2^32 - 1", n);
    bool failed = msgpack_pack_str(pk, n) != 0 || msgpack_pack_str_body(pk, text, n) != 0;
    return failed ? err_set(e, ERR_NOMEM, "msgpack: no memory") : ERR_OK;
}

static err_code pack(msgpack_packer *pk, const json_t *v, int depth, err *e)
{
    int failed = 0;
    if ((json_is_array(v) || json_is_object(v)) && depth == DEPTH_MAX)
        return err_set(e, ERR_ARG, "msgpack: found more than %d levels, wanted at most that", DEPTH_MAX);
    switch (json_typeof(v)) {
    case JSON_NULL: failed = msgpack_pack_nil(pk); break;
    case JSON_TRUE: failed = msgpack_pack_true(pk); break;
    case JSON_FALSE: failed = msgpack_pack_false(pk); break;
    case JSON_INTEGER: failed = msgpack_pack_int64(pk, json_integer_value(v)); break;
    case JSON_REAL: failed = msgpack_pack_double(pk, json_real_value(v)); break;
    case JSON_STRING: return pack_text(pk, json_string_value(v), json_string_length(v), e);
    case JSON_ARRAY: {
        size_t i;
        json_t *item;
        failed = msgpack_pack_array(pk, json_array_size(v));
        json_array_foreach((json_t *)v, i, item) TRY(pack(pk, item, depth + 1, e));
        break;
    }
    case JSON_OBJECT: {
        const char *key;
        json_t *item;
        failed = msgpack_pack_map(pk, json_object_size(v));
        json_object_foreach((json_t *)v, key, item) {
            TRY(pack_text(pk, key, strlen(key), e));
            TRY(pack(pk, item, depth + 1, e));
        }
        break;
    }
    }
    return failed ? err_set(e, ERR_NOMEM, "msgpack: no memory") : ERR_OK;
}

err_code fmt_msgpack_pack(const json_t *value, uint8_t **out, size_t *out_bytes, err *e)
{
    *out = NULL;
    *out_bytes = 0;
    msgpack_sbuffer buf;
    msgpack_packer pk;
    msgpack_sbuffer_init(&buf);
    msgpack_packer_init(&pk, &buf, msgpack_sbuffer_write);
    err_code rc = pack(&pk, value, 0, e);
    if (rc == ERR_OK) {
        *out_bytes = buf.size;
        *out = (uint8_t *)msgpack_sbuffer_release(&buf);
    }
    msgpack_sbuffer_destroy(&buf);
    return rc;
}

/* ---- unpacking ---- */

typedef struct input {
    const uint8_t *start, *p, *end;
    err *e;
} input;

static size_t left(const input *in) { return (size_t)(in->end - in->p); }
static size_t place(const input *in) { return (size_t)(in->p - in->start); }
static json_t *no_memory(input *in) { err_set(in->e, ERR_NOMEM, "msgpack: no memory"); return NULL; }

/* Takes n bytes; NULL when there are fewer. */
static const uint8_t *take(input *in, size_t n)
{
    if (left(in) < n) {
        err_set(in->e, ERR_FORMAT, "msgpack: byte %zu: found %zu bytes to the end, wanted %zu", place(in), left(in), n);
        return NULL;
    }
    in->p += n;
    return in->p - n;
}

/* A length of 1, 2 or 4 bytes. */
static bool take_length(input *in, size_t width, uint32_t *out)
{
    const uint8_t *p = take(in, width);
    if (p) *out = width == 1 ? p[0] : width == 2 ? be16(p) : be32(p);
    return p != NULL;
}

static json_t *integer(input *in, int64_t v)
{
    json_t *j = json_integer(v);
    return j ? j : no_memory(in);
}

static json_t *real(input *in, double v)
{
    json_t *j = fmt_json_real(v);
    return j ? j : no_memory(in);
}

static json_t *text(input *in, size_t n)
{
    size_t at = place(in);
    const char *p = (const char *)take(in, n);
    if (!p) return NULL;
    json_t *j = NULL;
    char *copy = malloc(n + 1);
    if (!copy) return no_memory(in);
    memcpy(copy, p, n);
    copy[n] = 0;
    size_t good = 0;
    for (size_t step; good < n && (step = utf8_bytes(copy + good)) > 0;) good += step;
    if (good != n) {
        err_set(in->e, ERR_FORMAT, "msgpack: byte %zu: found a string that is not UTF-8", at);
    } else {
        utf8_defuse(copy, n, "\n\t"); /* what a tape or a worker says of itself is printed */
        j = json_stringn_nocheck(copy, n);
        if (!j) no_memory(in);
    }
    free(copy);
    return j;
}

static json_t *value(input *in, int depth);

static json_t *array(input *in, uint32_t n, int depth)
{
    if (left(in) < n) { /* every element takes a byte or more */
        err_set(in->e, ERR_FORMAT, "msgpack: byte %zu: found an array of %" PRIu32 " with %zu bytes left", place(in), n,
                left(in));
        return NULL;
    }
    json_t *list = json_array();
    if (!list) return no_memory(in);
    for (uint32_t i = 0; i < n; i++) {
        json_t *item = value(in, depth + 1);
        if (!item || json_array_append_new(list, item) != 0) {
            if (item) no_memory(in);
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* One key and its value into map. */
static bool member(input *in, json_t *map, int depth)
{
    size_t at = place(in);
    json_t *key = value(in, DEPTH_MAX), *item = NULL; /* at the last depth only a scalar passes */
    bool ok = false;
    if (!key) return false;
    const char *name = json_string_value(key);
    if (!name || strlen(name) != json_string_length(key))
        err_set(in->e, ERR_FORMAT, "msgpack: byte %zu: found a map key that is no plain string", at);
    else if (json_object_get(map, name))
        err_set(in->e, ERR_FORMAT, "msgpack: byte %zu: found key '%.100s' twice in one map", at, name);
    else if ((item = value(in, depth + 1))) {
        ok = json_object_set_new_nocheck(map, name, item) == 0;
        if (!ok) no_memory(in);
    }
    json_decref(key);
    return ok;
}

static json_t *map(input *in, uint32_t n, int depth)
{
    if (left(in) / 2 < n) {
        err_set(in->e, ERR_FORMAT, "msgpack: byte %zu: found a map of %" PRIu32 " with %zu bytes left", place(in), n,
                left(in));
        return NULL;
    }
    json_t *object = json_object();
    if (!object) return no_memory(in);
    for (uint32_t i = 0; i < n; i++)
        if (!member(in, object, depth)) {
            json_decref(object);
            return NULL;
        }
    return object;
}

static json_t *number(input *in, uint8_t tag)
{
    /* Bytes after tags 0xca..0xd3: f32, f64, u8..u64, i8..i64. */
    static const uint8_t WIDTH[] = { 4, 8, 1, 2, 4, 8, 1, 2, 4, 8 };
    size_t at = place(in) - 1;
    const uint8_t *p = take(in, WIDTH[tag - 0xca]);
    if (!p) return NULL;
    switch (tag) {
    case 0xca: {
        uint32_t u = be32(p);
        float v;
        memcpy(&v, &u, sizeof v);
        return real(in, v);
    }
    case 0xcb: {
        uint64_t u = be64(p);
        double v;
        memcpy(&v, &u, sizeof v);
        return real(in, v);
    }
    case 0xcc: return integer(in, p[0]);
    case 0xcd: return integer(in, be16(p));
    case 0xce: return integer(in, be32(p));
    case 0xcf:
        if (be64(p) > INT64_MAX) {
            err_set(in->e, ERR_FORMAT, "msgpack: byte %zu: found integer %" PRIu64 ", wanted at most 2^63 - 1", at,
                    be64(p));
            return NULL;
        }
        return integer(in, (int64_t)be64(p));
    case 0xd0: return integer(in, (int8_t)p[0]);
    case 0xd1: return integer(in, (int16_t)be16(p));
    case 0xd2: return integer(in, (int32_t)be32(p));
    default: return integer(in, (int64_t)be64(p));
    }
}

static json_t *container(input *in, uint8_t tag, int depth)
{
    uint32_t n = tag & 15;
    if (depth == DEPTH_MAX) {
        err_set(in->e, ERR_FORMAT, "msgpack: byte %zu: found an array or map inside %d others or as a key", place(in) - 1,
                depth);
        return NULL;
    }
    if (tag >= 0xdc && !take_length(in, tag & 1 ? 4 : 2, &n)) return NULL;
    bool is_map = tag < 0x90 || tag >= 0xde;
    return is_map ? map(in, n, depth) : array(in, n, depth);
}

static json_t *value(input *in, int depth)
{
    const uint8_t *p = take(in, 1);
    uint32_t n;
    if (!p) return NULL;
    uint8_t tag = *p;
    if (tag < 0x80 || tag >= 0xe0) return integer(in, (int8_t)tag);
    if (tag < 0xa0 || tag >= 0xdc) return container(in, tag, depth);
    if (tag < 0xc0) return text(in, tag & 31);
    if (tag == 0xc0) return json_null();
    if (tag == 0xc2) return json_false();
    if (tag == 0xc3) return json_true();
    if (tag >= 0xca && tag <= 0xd3) return number(in, tag);
    if (tag >= 0xd9) return take_length(in, (size_t)1 << (tag - 0xd9), &n) ? text(in, n) : NULL;
    err_set(in->e, ERR_FORMAT, "msgpack: byte %zu: found type 0x%02x, wanted nil, bool, number, string, array or map",
            place(in) - 1, tag);
    return NULL;
}

err_code fmt_msgpack_unpack(const uint8_t *data, size_t bytes, json_t **out, err *e)
{
    err found = { 0 };
    input in = { data, data, data + bytes, &found };
    *out = NULL;
    json_t *v = value(&in, 0);
    if (v && in.p != in.end) {
        err_set(&found, ERR_FORMAT, "msgpack: byte %zu: found %zu bytes after the value, wanted none", place(&in),
                left(&in));
        json_decref(v);
        v = NULL;
    }
    if (!v) {
        if (e) *e = found;
        return found.code;
    }
    *out = v;
    return ERR_OK;
}
