#include "replay/source.h"

#include "base/mem.h"
#include "engine/identity.h"

#include <inttypes.h>

/* Keys, shapes and hashes of all records in order: copies of a tape have it in common whatever they are called. */
static uint64_t content_of(const fmt_tape *t)
{
    uint64_t h = 0;
    for (size_t i = 0; i < fmt_tape_count(t); i++) {
        fmt_tape_record r;
        uint8_t buf[40 + 8 * FMT_DIMS_MAX + FMT_TAPE_NAME_BYTES] = { 0 };
        fmt_tape_at(t, i, &r);
        put_u64(buf, h);
        put_u64(buf + 8, r.hash);
        put_u64(buf + 16, r.digest);
        put_u32(buf + 24, (uint32_t)r.key.round);
        put_u32(buf + 28, (uint32_t)r.key.slot);
        put_u32(buf + 32, (uint32_t)r.key.rank);
        put_u32(buf + 36, (uint32_t)r.tensor.dtype);
        for (int32_t d = 0; d < r.tensor.ndim; d++) put_u64(buf + 40 + 8 * d, (uint64_t)r.tensor.shape[d]);
        memcpy(buf + 40 + 8 * FMT_DIMS_MAX, r.key.name, strlen(r.key.name));
        h = fmt_hash64(buf, sizeof buf);
    }
    return h;
}

static json_t *tape_json(const fmt_tape *t)
{
    const json_t *id = json_object_get(fmt_tape_head(t), "identity"), *build = json_object_get(id, "build");
    const char *arm = fmt_json_text(json_object_get(id, "arm"), "name");
    char run[256] = "", content[24];
    if (arm[0])
        snprintf(run, sizeof run, "%s, %s, %s, %s, %s, tp %lld", arm, fmt_json_text(id, "backend"),
                 fmt_json_text(id, "mode"), fmt_json_text(id, "acc"), fmt_json_text(id, "combine"),
                 (long long)json_integer_value(json_object_get(id, "tp")));
    snprintf(content, sizeof content, "%016" PRIx64, content_of(t));
    return json_pack("{s:s, s:s, s:s, s:s, s:s}", "tape", fmt_tape_path(t), "content", content, "run", run, "checkpoint",
                     fmt_json_text(id, "checkpoint"), "build", fmt_json_text(build, "source"));
}

json_t *rpl_source_json(json_t *j, const fmt_tape *t)
{
    json_t *list = json_object_get(j, "source");
    bool fine = j != NULL;
    if (fine && !list) {
        list = json_array();
        fine = json_object_set_new(j, "source", list) == 0 && json_object_set_new(j, "by", json_string(eng_build())) == 0;
    }
    if (fine) fine = json_array_append_new(list, tape_json(t)) == 0;
    if (fine) return j;
    json_decref(j);
    return NULL;
}

json_t *rpl_options_json(json_t *j, const char *rounds, const char *tap)
{
    if (!j || (!rounds && !tap)) return j;
    json_t *o = json_object();
    bool fine = o != NULL;
    if (fine && rounds) fine = json_object_set_new(o, "rounds", json_string(rounds)) == 0;
    if (fine && tap) fine = json_object_set_new(o, "tap", json_string(tap)) == 0;
    if (fine && json_object_set_new(j, "options", o) == 0) return j;
    json_decref(j);
    return NULL;
}
