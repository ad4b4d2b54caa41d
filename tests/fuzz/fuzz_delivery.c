/* What a run of quantize finds of an earlier one: any bytes as a shard that may be its own, or as the folder's index (the
 * first byte chooses). Refused with one line; else a shard is taken for its own only with its tensors and its metadata, and
 * an index says afterwards what was put into it, and no more once it was taken out. */
#include "engine/quantize_folder.h"

#include <string.h>

#include "memfile.h"
#include "workplace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char INDEX[] = "model.safetensors.index.json";

static void check_refusal(err_code rc, const err *e)
{
    CHECK((rc == ERR_FORMAT || rc == ERR_INPUT || rc == ERR_ARG) && e->msg[0] && !strchr(e->msg, '\n'));
}

static void shard(const uint8_t *data, size_t size)
{
    static const fmt_safetensors_decl DECL[] = { { "a", FMT_DTYPE_I16, 2, { 2, 3 } }, { "b", FMT_DTYPE_F16, 1, { 4 } } };
    char path[MEMFILE_PATH];
    bool has, forced;
    err e = { 0 };
    json_t *metadata = json_pack("{s:s, s:s}", "format", "pt", "source", "0123");
    int fd = memfile(data, size, path);
    err_code rc = eng_delivery_has(path, DECL, 2, metadata, false, &has, &e);
    if (rc != ERR_OK) check_refusal(rc, &e);
    CHECK((rc == ERR_OK) == has);
    CHECK(eng_delivery_has(path, DECL, 2, metadata, true, &forced, &e) == ERR_OK && forced == has);
    close(fd);
    json_decref(metadata);
}

static bool names(const json_t *index, const char *name, const char *shard)
{
    const char *there = json_string_value(json_object_get(json_object_get(index, "weight_map"), name));
    return there && strcmp(there, shard) == 0;
}

static void index_of_folder(const uint8_t *data, size_t size)
{
    static const fmt_checkpoint_place PLACE[] = { { "w.trellis", "exl3-1.safetensors", 2048 },
                                                  { "w.suh", "exl3-2.safetensors", 256 } };
    json_t *index;
    fmt_checkpoint *c;
    err e = { 0 };
    FILE *f = fopen(INDEX, "wb");
    CHECK(f && fwrite(data, 1, size, f) == size && fclose(f) == 0);
    if (fmt_checkpoint_open(".", NULL, NULL, &c, &e) == ERR_OK) fmt_checkpoint_close(c);
    else check_refusal(e.code, &e);
    err_code rc = fmt_checkpoint_index_add(".", PLACE, 2, false, &e);
    if (rc != ERR_OK) {
        check_refusal(rc, &e);
        return;
    }
    CHECK(fmt_json_read(INDEX, 1 << 20, &index, &e) == ERR_OK);
    CHECK(names(index, PLACE[0].name, PLACE[0].shard) && names(index, PLACE[1].name, PLACE[1].shard));
    json_decref(index);
    CHECK(fmt_checkpoint_index_drop(".", PLACE, 2, &e) == ERR_OK);
    CHECK(fmt_json_read(INDEX, 1 << 20, &index, &e) == ERR_OK);
    CHECK(!names(index, PLACE[0].name, PLACE[0].shard) && !names(index, PLACE[1].name, PLACE[1].shard));
    json_decref(index);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool is_set_up;
    if (!is_set_up) workplace_enter();
    is_set_up = true;
    if (size == 0) return 0;
    if (data[0] % 2) shard(data + 1, size - 1);
    else index_of_folder(data + 1, size - 1);
    return 0;
}
