#include "engine/tensor_check.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/mem.h"
#include "formats/number.h"

enum {
    CHUNK_BYTES = 1 << 20, /* scanned and hashed while it is in the cache */
    CACHE_FILE_MAX = 64 << 20,
    CACHE_NAME_HEX = 32,
};

/* A file changed this shortly before it was opened may change again without its times showing it: file systems keep them
 * to 4 ms at best and to 2 s at worst. Such a shard is not remembered. */
static const uint64_t SETTLED_NS = 2000000000u;

/* ---- values ---- */

/* F16 are EXL3's factors: an infinite one makes a NaN of every row. The others may be infinite. */

static uint32_t load_u32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static uint16_t load_u16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return v; }

static bool is_bad_at(fmt_dtype d, const uint8_t *p)
{
    switch (d) {
    case FMT_DTYPE_F8: return (*p & 0x7f) == FMT_E4M3_NAN;
    case FMT_DTYPE_E8M0: return *p == FMT_E8M0_NAN;
    case FMT_DTYPE_BF16: return (load_u16(p) & 0x7fff) > 0x7f80;
    case FMT_DTYPE_F16: return (load_u16(p) & 0x7c00) == 0x7c00;
    case FMT_DTYPE_F32: return (load_u32(p) & 0x7fffffff) > 0x7f800000;
    default: return false; /* packed FP4 and tiles have no NaN */
    }
}

/* Index of the first that is refused among the elements of bytes, -1: none. The data need not be aligned: the format does
 * not ask. */
static int64_t first_bad(fmt_dtype d, const uint8_t *p, size_t bytes)
{
    size_t size = fmt_dtype_bytes(d);
    int any = 0;
    /* Branch-free, one loop per type, so that it is vectorised and costs less than the hash. */
    switch (d) {
    case FMT_DTYPE_F8: for (size_t i = 0; i < bytes; i++) any |= is_bad_at(FMT_DTYPE_F8, p + i); break;
    case FMT_DTYPE_E8M0: for (size_t i = 0; i < bytes; i++) any |= is_bad_at(FMT_DTYPE_E8M0, p + i); break;
    case FMT_DTYPE_F16: for (size_t i = 0; i < bytes; i += 2) any |= is_bad_at(FMT_DTYPE_F16, p + i); break;
    case FMT_DTYPE_BF16: for (size_t i = 0; i < bytes; i += 2) any |= is_bad_at(FMT_DTYPE_BF16, p + i); break;
    case FMT_DTYPE_F32: for (size_t i = 0; i < bytes; i += 4) any |= is_bad_at(FMT_DTYPE_F32, p + i); break;
    default: break;
    }
    for (size_t i = 0; any && i < bytes; i += size)
        if (is_bad_at(d, p + i)) return (int64_t)(i / size);
    return -1;
}

static err_code check_one(const eng_stored *s, progress *bar, fmt_sha256 *sha, err *e)
{
    const fmt_safetensors_entry *x = s->entry;
    const uint8_t *data = x->tensor.data;
    uint32_t size = fmt_dtype_bytes(x->tensor.dtype);
    err_code rc = ERR_OK;
    fmt_sha256_state *hash;
    TRY(fmt_sha256_open(&hash, e));
    for (uint64_t at = 0; at < x->bytes && rc == ERR_OK; at += CHUNK_BYTES) {
        size_t n = x->bytes - at < CHUNK_BYTES ? (size_t)(x->bytes - at) : CHUNK_BYTES;
        int64_t bad = first_bad(x->tensor.dtype, data + at, n);
        if (bad >= 0)
            rc = err_set(e, ERR_INPUT, "%s: tensor %s: element %" PRIu64 ": found %s, wanted a%s number",
                         fmt_safetensors_path(s->shard), x->name, at / size + (uint64_t)bad,
                         x->tensor.dtype == FMT_DTYPE_E8M0 ? "NaN (scale byte 255)" :
                         x->tensor.dtype == FMT_DTYPE_F16 ? "NaN or infinity" : "NaN",
                         x->tensor.dtype == FMT_DTYPE_F16 ? " finite" : "");
        fmt_sha256_add(hash, data + at, n);
        #pragma omp critical(tensor_check_progress)
        progress_add(bar, n);
    }
    fmt_sha256_close(hash, sha);
    return rc;
}

/* Checks the tensors whose known[] is false. Of several errors the first tensor's is reported, whatever the threads do. */
static err_code check_unknown(const eng_stored *stored, size_t n, const bool *known, bool quiet, fmt_sha256 *sha, err *e)
{
    size_t bad = n;
    err first = { 0 };
    progress bar;
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) total += known[i] ? 0 : stored[i].entry->bytes;
    progress_begin(&bar, "checking weights", total, quiet);
    #pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < n; i++) {
        size_t limit;
        err mine = { 0 };
        #pragma omp atomic read
        limit = bad;
        if (known[i] || i > limit || check_one(&stored[i], &bar, &sha[i], &mine) == ERR_OK) continue;
        #pragma omp critical(tensor_check_error)
        if (i < bad) {
            #pragma omp atomic write
            bad = i;
            first = mine;
        }
    }
    progress_end(&bar);
    if (bad == n) return ERR_OK;
    if (e) *e = first;
    return first.code;
}

/* ---- memory of earlier passes ---- */

static int64_t ns_of(struct timespec t) { return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec; }

/* What a shard is recognised by (new reference), and the file its findings are kept in. NULL: do not remember this one. */
static json_t *shard_key(const fmt_safetensors *shard, uint64_t opened_wall_ns, char path[PATH_MAX])
{
    char real[PATH_MAX], hex[FMT_SHA256_HEX];
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    struct stat st;
    fmt_sha256 name;
    bool use_xdg = xdg && xdg[0] == '/';
    if (!use_xdg && (!home || home[0] != '/')) return NULL;
    if (!realpath(fmt_safetensors_path(shard), real) || stat(real, &st) != 0) return NULL;
    if (ns_of(st.st_ctim) + (int64_t)SETTLED_NS > (int64_t)opened_wall_ns) return NULL;
    if (fmt_sha256_of(real, strlen(real), &name, NULL) != ERR_OK) return NULL;
    fmt_sha256_hex(&name, hex);
    int used = snprintf(path, PATH_MAX, "%s%s/sparktape/%.*s.json", use_xdg ? xdg : home, use_xdg ? "" : "/.cache",
                        CACHE_NAME_HEX, hex);
    if (used < 0 || used >= PATH_MAX) return NULL;
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I}", "format", "sparktape-checked-1", "path", real,
                     "device", (json_int_t)st.st_dev, "inode", (json_int_t)st.st_ino, "bytes", (json_int_t)st.st_size,
                     "mtime_ns", (json_int_t)ns_of(st.st_mtim), "ctime_ns", (json_int_t)ns_of(st.st_ctim));
}

static bool sha_from_hex(const char *hex, fmt_sha256 *out)
{
    enum { DIGITS = 2 * FMT_SHA256_BYTES };
    if (!hex || strlen(hex) != DIGITS || strspn(hex, "0123456789abcdef") != DIGITS) return false;
    for (int i = 0; i < FMT_SHA256_BYTES; i++) {
        char two[3] = { hex[2 * i], hex[2 * i + 1], 0 };
        out->bytes[i] = (uint8_t)strtoul(two, NULL, 16);
    }
    return true;
}

/* Marks the tensors of a shard that an earlier pass found sound, and fills in their hashes. */
static void recall(const fmt_safetensors *shard, const eng_stored *stored, size_t n, uint64_t opened_wall_ns, bool *known,
                   fmt_sha256 *sha)
{
    char path[PATH_MAX];
    json_t *kept = NULL, *key = shard_key(shard, opened_wall_ns, path);
    if (!key) return;
    if (fmt_json_read(path, CACHE_FILE_MAX, &kept, NULL) == ERR_OK && json_equal(json_object_get(kept, "shard"), key)) {
        const json_t *tensors = json_object_get(kept, "tensors");
        for (size_t i = 0; i < n; i++)
            if (stored[i].shard == shard)
                known[i] = sha_from_hex(json_string_value(json_object_get(tensors, stored[i].entry->name)), &sha[i]);
    }
    json_decref(kept);
    json_decref(key);
}

/* Makes the folders of path, for its owner alone: names and hashes of private weights are private too. */
static bool make_folders(char *path)
{
    char *file = strrchr(path, '/'), *folder = NULL;
    *file = 0;
    folder = strrchr(path, '/');
    *folder = 0;
    bool ok = mkdir(path, 0700) == 0 || errno == EEXIST;
    *folder = '/';
    ok = ok && (mkdir(path, 0700) == 0 || errno == EEXIST);
    *file = '/';
    return ok;
}

static void remember(const fmt_safetensors *shard, const eng_stored *stored, size_t n, uint64_t opened_wall_ns,
                     const fmt_sha256 *sha)
{
    char path[PATH_MAX], hex[FMT_SHA256_HEX];
    json_t *key = shard_key(shard, opened_wall_ns, path), *tensors = json_object(), *kept = NULL;
    bool ok = key && tensors;
    for (size_t i = 0; ok && i < n; i++) {
        if (stored[i].shard != shard) continue;
        fmt_sha256_hex(&sha[i], hex);
        ok = json_object_set_new(tensors, stored[i].entry->name, json_string(hex)) == 0;
    }
    if (ok && (kept = json_pack("{s:O, s:O}", "shard", key, "tensors", tensors)) && make_folders(path)) {
        err_code ignored = fmt_json_write(path, kept, NULL);
        (void)ignored; /* a full disk or a read-only home only costs the next open its pass */
    }
    json_decref(kept);
    json_decref(tensors);
    json_decref(key);
}

/* ---- both ---- */

/* Whether stored[i] is the first of its shard; shards are few and their tensors adjacent but for a few. */
static bool is_first_of_shard(const eng_stored *stored, size_t i)
{
    if (i > 0 && stored[i - 1].shard == stored[i].shard) return false;
    for (size_t k = 0; k < i; k++)
        if (stored[k].shard == stored[i].shard) return false;
    return true;
}

err_code eng_tensors_check(const eng_stored *stored, size_t n, uint64_t opened_wall_ns, bool quiet, fmt_sha256 *sha, err *e)
{
    bool *known = mem_alloc(n, sizeof *known);
    err_code rc = known ? ERR_OK : err_set(e, ERR_NOMEM, "no memory to check %zu tensors", n);
    for (size_t i = 0; rc == ERR_OK && i < n; i++)
        if (is_first_of_shard(stored, i)) recall(stored[i].shard, stored, n, opened_wall_ns, known, sha);
    if (rc == ERR_OK) rc = check_unknown(stored, n, known, quiet, sha, e);
    for (size_t i = 0; rc == ERR_OK && i < n; i++) {
        if (!is_first_of_shard(stored, i)) continue;
        bool all_known = true;
        for (size_t k = i; k < n; k++) all_known = all_known && (known[k] || stored[k].shard != stored[i].shard);
        if (!all_known) remember(stored[i].shard, stored, n, opened_wall_ns, sha);
    }
    free(known);
    return rc;
}
