#include "capture/redact.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/keyfile.h"
#include "base/mem.h"
#include "formats/sha256.h"

static const char SHUFFLE[] = "sparktape shuffle 1", NAME[] = "sparktape key 1";

struct cap_redact {
    int32_t vocab;
    int32_t *id, *back; /* [vocab]; NULL: the key is not known */
    char key[CAP_KEY_TEXT];
};

/* ---- the key file ---- */

static err_code failed(const char *path, err *e)
{
    return err_set(e, ERR_IO, "--redact %s: %s", path, strerror(errno));
}

/* Written beside its place and linked there: of two processes that find none, both read the first one's. */
static err_code make_key(const char *path, err *e)
{
    uint8_t key[CAP_KEY_BYTES];
    size_t room = strlen(path) + sizeof ".XXXXXX";
    char *beside = mem_alloc(room, 1);
    if (!beside) return err_set(e, ERR_NOMEM, "--redact %s: no memory for a name", path);
    snprintf(beside, room, "%s.XXXXXX", path);
    int fd = mkstemp(beside); /* 0600 */
    bool fine = fd >= 0 && getentropy(key, sizeof key) == 0 && write(fd, key, sizeof key) == (ssize_t)sizeof key &&
                fsync(fd) == 0 && (link(beside, path) == 0 || errno == EEXIST);
    err_code rc = fine ? ERR_OK : failed(path, e);
    if (fd >= 0) {
        close(fd);
        unlink(beside);
    }
    free(beside);
    return rc;
}

static err_code read_key(const char *path, bool make, uint8_t key[CAP_KEY_BYTES], err *e)
{
    uint8_t bytes[CAP_KEY_BYTES + 1];
    char what[200];
    int fd;
    snprintf(what, sizeof what, "--redact %s", path);
    if (make && access(path, F_OK) != 0 && errno == ENOENT) TRY(make_key(path, e));
    TRY(keyfile_open(path, what, &fd, e));
    ssize_t n = read(fd, bytes, sizeof bytes);
    err_code rc = n < 0 ? failed(path, e) : ERR_OK;
    close(fd);
    if (rc == ERR_OK && n != CAP_KEY_BYTES)
        rc = err_set(e, ERR_INPUT, "--redact %s: found %s%d bytes, wanted a key of %d", path,
                     n > CAP_KEY_BYTES ? "more than " : "", (int)(n > CAP_KEY_BYTES ? CAP_KEY_BYTES : n), CAP_KEY_BYTES);
    if (rc == ERR_OK) memcpy(key, bytes, CAP_KEY_BYTES);
    return rc;
}

/* ---- the permutation ---- */

/* SHA-256(key, text, tail). */
static err_code hash(const uint8_t key[CAP_KEY_BYTES], const char *text, const void *tail, size_t tail_bytes,
                     fmt_sha256 *out, err *e)
{
    uint8_t bytes[CAP_KEY_BYTES + sizeof SHUFFLE + 12];
    size_t n = strlen(text);
    memcpy(bytes, key, CAP_KEY_BYTES);
    memcpy(bytes + CAP_KEY_BYTES, text, n);
    if (tail_bytes) memcpy(bytes + CAP_KEY_BYTES + n, tail, tail_bytes);
    return fmt_sha256_of(bytes, CAP_KEY_BYTES + n + tail_bytes, out, e);
}

static err_code shuffle(cap_redact *r, const uint8_t key[CAP_KEY_BYTES], err *e)
{
    enum { WORDS = FMT_SHA256_BYTES / 8 };
    fmt_sha256 block;
    uint8_t tail[12];
    uint64_t n = 0;
    put_u32(tail, (uint32_t)r->vocab);
    for (int32_t i = 0; i < r->vocab; i++) r->id[i] = i;
    for (int32_t i = r->vocab - 1; i > 0; i--, n++) {
        put_u64(tail + 4, n / WORDS);
        if (n % WORDS == 0) TRY(hash(key, SHUFFLE, tail, sizeof tail, &block, e));
        /* A remainder of 64 bits is even to one part in 2^46 for any vocabulary there is. */
        int32_t k = (int32_t)(get_u64(block.bytes + 8 * (n % WORDS)) % ((uint64_t)i + 1)), id = r->id[i];
        r->id[i] = r->id[k];
        r->id[k] = id;
    }
    for (int32_t i = 0; i < r->vocab; i++) r->back[r->id[i]] = i;
    return ERR_OK;
}

static err_code open_key(cap_redact *r, const char *path, bool make, err *e)
{
    uint8_t key[CAP_KEY_BYTES];
    fmt_sha256 name;
    TRY(read_key(path, make, key, e));
    TRY(hash(key, NAME, NULL, 0, &name, e));
    for (int i = 0; i < CAP_KEY_TEXT / 2; i++) snprintf(r->key + 2 * i, 3, "%02x", name.bytes[i]);
    r->id = mem_alloc((size_t)r->vocab, sizeof *r->id);
    r->back = mem_alloc((size_t)r->vocab, sizeof *r->back);
    if (!r->id || !r->back) return err_set(e, ERR_NOMEM, "--redact: no memory for %d ids", r->vocab);
    return shuffle(r, key, e);
}

err_code cap_redact_open(const char *key_path, bool make, int32_t vocab, cap_redact **out, err *e)
{
    *out = NULL;
    cap_redact *r = mem_alloc(1, sizeof *r);
    if (!r) return err_set(e, ERR_NOMEM, "--redact: no memory");
    r->vocab = vocab;
    err_code rc = open_key(r, key_path, make, e);
    if (rc != ERR_OK) cap_redact_close(r);
    else *out = r;
    return rc;
}

err_code cap_redact_inherit(const fmt_tape *t, cap_redact **out, err *e)
{
    *out = mem_alloc(1, sizeof **out);
    if (!*out) return err_set(e, ERR_NOMEM, "%s: no memory for its key's name", fmt_tape_path(t));
    snprintf((*out)->key, sizeof (*out)->key, "%s", cap_redact_key_of(t));
    return ERR_OK;
}

void cap_redact_close(cap_redact *r)
{
    if (!r) return;
    free(r->id);
    free(r->back);
    free(r);
}

const char *cap_redact_key(const cap_redact *r) { return r->key; }

static int32_t look_up(const cap_redact *r, const int32_t *table, int32_t id)
{
    return table && id >= 0 && id < r->vocab ? table[id] : id;
}

int32_t cap_redact_id(const cap_redact *r, int32_t id) { return r ? look_up(r, r->id, id) : id; }
int32_t cap_redact_reveal(const cap_redact *r, int32_t id) { return r ? look_up(r, r->back, id) : id; }

void cap_redact_ids(const cap_redact *r, const int32_t *ids, int64_t n, int32_t *out)
{
    for (int64_t i = 0; i < n; i++) out[i] = cap_redact_id(r, ids[i]);
}

void cap_redact_columns(const cap_redact *r, const void *const *shard, const int64_t *cols, int32_t n_shards, int64_t rows,
                        uint32_t *out)
{
    for (int64_t first = 0, k = 0; k < n_shards; first += cols[k++])
        for (int64_t i = 0; i < cols[k]; i++) {
            int64_t to = cap_redact_id(r, (int32_t)(first + i)), to_first = 0;
            int32_t s = 0;
            while (to - to_first >= cols[s]) to_first += cols[s++];
            const uint32_t *src = (const uint32_t *)shard[k] + i;
            uint32_t *dst = out + rows * to_first + (to - to_first);
            for (int64_t row = 0; row < rows; row++) dst[row * cols[s]] = src[row * cols[k]];
        }
}

/* ---- what tells ids ---- */

static bool is_id(const char *name)
{
    return strcmp(name, "draft.anchor") == 0 || strcmp(name, "ids") == 0 || strcmp(name, "drafts") == 0;
}

static bool has_columns(const eng_value *v) { return v->ndim > 0 && v->dim[v->ndim - 1] == ENG_DIM_V; }

/* Bits of what a value is made from. */
enum { FROM_IDS = 1, FROM_STATE = 2 };

err_code cap_redact_program(const cap_redact *r, const eng_program *p, bool all_ranks, cap_hide *hide, err *e)
{
    memset(hide, 0, (size_t)p->n_values * sizeof *hide);
    if (!r) return ERR_OK;
    uint8_t *from = mem_alloc((size_t)p->n_values + 1, 1);
    if (!from) return err_set(e, ERR_NOMEM, "--redact: no memory for %d values", p->n_values);
    for (int32_t v = 0; v < p->n_values; v++)
        from[v] = p->value[v].state ? FROM_STATE : is_id(p->value[v].name) ? FROM_IDS : 0;
    for (int32_t i = 0; i < p->n_ops; i++) /* an op reads values of earlier ones only */
        for (int32_t k = 0; k < p->op[i].n_out; k++)
            for (int32_t j = 0; j < p->op[i].n_in; j++) from[p->op[i].out[k]] |= from[p->op[i].in[j]];
    for (int32_t v = 0; v < p->n_values; v++) {
        const eng_value *value = &p->value[v];
        bool made = value->producer >= 0 && !value->state;
        if (!r->id) hide[v] = made && from[v] & FROM_IDS ? CAP_HIDE_VALUE : CAP_HIDE_NOTHING;
        else if (is_id(value->name)) hide[v] = CAP_HIDE_IDS;
        else if (has_columns(value)) hide[v] = all_ranks ? CAP_HIDE_COLUMNS : CAP_HIDE_VALUE;
        else if (made && value->dtype != FMT_DTYPE_I32 && from[v] == FROM_IDS) hide[v] = CAP_HIDE_VALUE; /* not positions */
    }
    free(from);
    return ERR_OK;
}

/* ---- of tapes ---- */

json_t *cap_redact_json(const cap_redact *r, const json_t *withheld)
{
    return json_pack("{s:s, s:s, s:O}", "key", r->key, "permutation", SHUFFLE, "withheld", withheld);
}

const char *cap_redact_key_of(const fmt_tape *t)
{
    const json_t *head = fmt_tape_head(t), *own = json_object_get(json_object_get(head, "redact"), "key");
    return json_string_value(own ? own : json_object_get(json_object_get(head, "imported"), "redact"));
}

bool cap_redact_same_key(const fmt_tape *a, const fmt_tape *b)
{
    const char *x = cap_redact_key_of(a), *y = cap_redact_key_of(b);
    return x && y ? strcmp(x, y) == 0 : x == y;
}

bool cap_redact_tells_ids(const char *name)
{
    size_t n = strlen(name), m = sizeof ".top_ids" - 1;
    return is_id(name) || strcmp(name, "head.logits") == 0 || strcmp(name, "head.biased") == 0 ||
           (n > m && strcmp(name + n - m, ".top_ids") == 0);
}

bool cap_redact_withholds(const fmt_tape *t, const char *name)
{
    const json_t *withheld = json_object_get(json_object_get(fmt_tape_head(t), "redact"), "withheld");
    const char *view = strstr(name, ".top"); /* "head.logits.top_ids" is withheld with head.logits */
    size_t bytes = view ? (size_t)(view - name) : strlen(name);
    for (size_t i = 0; i < json_array_size(withheld); i++) {
        const char *text = json_string_value(json_array_get(withheld, i));
        if (text && strlen(text) == bytes && memcmp(text, name, bytes) == 0) return true;
    }
    return false;
}
