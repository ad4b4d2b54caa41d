/* A small checkpoint made in memory, so that a test can spoil one thing and write it out.
 *
 * Sizes are unequal on purpose, the vocabulary has a ragged tile, and the files hold tensors at odd bytes. */
#ifndef TESTS_ENGINE_FIXTURE_H
#define TESTS_ENGINE_FIXTURE_H

#include "base/mem.h"
#include "engine/inventory.h"
#include "formats/safetensors.h"

#include <dirent.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { FIXTURE_TENSORS_MAX = 256 };

typedef struct fixture {
    char dir[64];
    eng_config config;
    size_t n;
    char names[FIXTURE_TENSORS_MAX][ENG_TENSOR_NAME];
    fmt_safetensors_decl decl[FIXTURE_TENSORS_MAX];
    uint8_t *data[FIXTURE_TENSORS_MAX];
    uint64_t bytes[FIXTURE_TENSORS_MAX];
    bool skip[FIXTURE_TENSORS_MAX];
} fixture;

static inline eng_config small_config(void)
{
    return (eng_config){
        .vocab = 600, .dim = 96, .n_layers = 40, .n_stages = 2, .block = 5, .noise_id = 599, .n_taps = 2,
        .tap_layer = { 37, 38 }, .markov_rank = 8, .n_experts = 4, .n_active = 2, .inter = 64, .n_heads = 4, .head_dim = 32,
        .rope_dim = 16, .q_lora = 64, .o_groups = 2, .o_lora = 32, .window = 16, .hc = 4, .sinkhorn_iters = 20,
        .norm_eps = 1e-20, .hc_eps = 1e-6, .route_scale = 1.5, .swiglu_limit = 10, .rope_theta = 10000,
    };
}

static inline uint32_t fixture_hash(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* One element's bytes: never NaN, and every code decodes exactly. */
static inline void fixture_element(fmt_dtype d, uint32_t h, uint8_t *p)
{
    switch (d) {
    case FMT_DTYPE_BF16: put_u16(p, (uint16_t)(0x3f00 | (h & 0xff) | (h & 0x8000))); break;
    case FMT_DTYPE_F32: put_u32(p, 0x3f000000 | (h & 0x80ffffff)); break;
    case FMT_DTYPE_E8M0: *p = (uint8_t)(120 + h % 8); break;
    case FMT_DTYPE_F8: *p = (uint8_t)(h & 0xbf); break;
    default: *p = (uint8_t)h; break;
    }
}

static inline size_t fixture_add(fixture *f, const char *name, fmt_dtype dtype, int32_t ndim, int64_t n, int64_t k)
{
    size_t i = f->n++;
    assert_true(i < FIXTURE_TENSORS_MAX);
    snprintf(f->names[i], sizeof f->names[i], "%s", name);
    f->decl[i] = (fmt_safetensors_decl){ f->names[i], dtype, ndim, { n, k } };
    uint32_t size = fmt_dtype_bytes(dtype);
    f->bytes[i] = (uint64_t)(n * (ndim == 2 ? k : 1)) * size;
    f->data[i] = mem_alloc(f->bytes[i], 1);
    for (uint64_t at = 0; at < f->bytes[i]; at += size)
        fixture_element(dtype, fixture_hash((uint32_t)(at + 77777 * i)), f->data[i] + at);
    return i;
}

static inline void fixture_init(fixture *f)
{
    eng_tensor_spec *spec;
    size_t n;
    memset(f, 0, sizeof *f);
    strcpy(f->dir, "fixture-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    f->config = small_config();
    assert_int_equal(eng_inventory(&f->config, &spec, &n, NULL), ERR_OK);
    for (size_t i = 0; i < n; i++)
        fixture_add(f, spec[i].name, spec[i].dtype, spec[i].ndim, spec[i].shape[0], spec[i].shape[1]);
    free(spec);
}

static inline size_t fixture_find(const fixture *f, const char *name)
{
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->names[i], name) == 0) return i;
    fail_msg("%s is not in the fixture", name);
    return 0;
}

static inline void fixture_write_shard(const fixture *f, const char *file, size_t parity, json_t *map)
{
    fmt_safetensors_decl decl[FIXTURE_TENSORS_MAX];
    char path[PATH_MAX];
    fmt_safetensors_writer *w;
    size_t n = 0;
    for (size_t i = parity; i < f->n; i += 2)
        if (!f->skip[i]) decl[n++] = f->decl[i];
    snprintf(path, sizeof path, "%s/%s", f->dir, file);
    assert_int_equal(fmt_safetensors_create(path, decl, n, NULL, &w, NULL), ERR_OK);
    for (size_t i = parity; i < f->n; i += 2) {
        if (f->skip[i]) continue;
        fmt_safetensors_put(w, f->data[i], f->bytes[i]);
        json_object_set_new(map, f->names[i], json_string(file));
    }
    assert_int_equal(fmt_safetensors_finish(w, NULL), ERR_OK);
}

/* Config, index and two shards; every second tensor goes to the second one. */
static inline void fixture_write(const fixture *f)
{
    char path[PATH_MAX];
    json_t *map = json_object(), *index = json_object(), *config = eng_config_json(&f->config);
    fixture_write_shard(f, "one.safetensors", 0, map);
    fixture_write_shard(f, "two.safetensors", 1, map);
    json_object_set_new(index, "weight_map", map);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", f->dir);
    assert_int_equal(fmt_json_write(path, index, NULL), ERR_OK);
    snprintf(path, sizeof path, "%s/config.json", f->dir);
    assert_int_equal(fmt_json_write(path, config, NULL), ERR_OK);
    json_decref(config);
    json_decref(index);
}

/* Removes a folder and the files in it. */
static inline void remove_folder(const char *dir)
{
    DIR *d = opendir(dir);
    char path[PATH_MAX + 257];
    for (struct dirent *x; d && (x = readdir(d)); ) {
        snprintf(path, sizeof path, "%s/%s", dir, x->d_name);
        unlink(path);
    }
    if (d) closedir(d);
    rmdir(dir);
}

static inline void fixture_fini(fixture *f)
{
    for (size_t i = 0; i < f->n; i++) free(f->data[i]);
    remove_folder(f->dir);
}

#endif
