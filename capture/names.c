#include "capture/joined.h"

#include "base/mem.h"

#include <limits.h>

/* ---- names of values ---- */

/* "s{k}.rest": *k and *rest are set. k without leading zeros. */
static bool staged(const char *name, int32_t *k, const char **rest)
{
    if (name[0] != 's' || name[1] < '0' || name[1] > '9') return false;
    int64_t n = 0;
    const char *p = name + 1;
    for (; *p >= '0' && *p <= '9'; p++) {
        n = n * 10 + (*p - '0');
        if (n > INT16_MAX) return false;
    }
    if (*p != '.' || (name[1] == '0' && p != name + 2)) return false;
    *k = (int32_t)n;
    *rest = p + 1;
    return true;
}

static bool is_window(const char *name, int32_t *k)
{
    const char *rest;
    return staged(name, k, &rest) && strcmp(rest, "window") == 0;
}

/* The order of docs/values.md, which is the program's. */
static const char *const INSERT_ORDER[] = { "taps", "pos", "main_x" };
static const char *const DRAFT_INPUTS[] = { "draft.slots", "draft.anchor", "draft.pos", "draft.n_out" };
static const char *const DRAFT_FIRST[] = { "ids", "block_pos", "x0" };
static const char *const STAGE_ORDER[] = {
    "attn.mix_pre", "attn.mix_post", "attn.mix_comb", "attn.collapse", "attn.norm", "attn.qr", "attn.q", "attn.kv",
    "attn.o", "attn.o_qdq", "attn.wo_a", "attn_out", "attn.stream", "ffn.mix_pre", "ffn.mix_post", "ffn.mix_comb",
    "ffn.collapse", "ffn.norm", "ffn.scores", "ffn.ids", "ffn.weights", "ffn.gate", "ffn.up", "ffn.h", "ffn.slot",
    "ffn.shared", "ffn_out", "out",
};
static const char *const HEAD_ORDER[] = {
    "head.collapse", "head.norm", "head.logits", "head.logits.top", "head.logits.top_ids", "head.biased", "head.biased.top",
    "head.biased.top_ids", "drafts", "confidence",
};

static int32_t place_in(const char *const *list, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], name) == 0) return (int32_t)i;
    return -1;
}
#define PLACE_IN(list, name) place_in(list, COUNT_OF(list), name)

/* Sections of a round, each wide enough for its names and every stage. */
enum { STAGES = INT16_MAX + 1, KVS = 16, INPUTS = CAP_ORDER_DRAFT, WINDOWS = INPUTS + 16, FIRST = WINDOWS + STAGES,
       STAGED = FIRST + 16, HEAD = STAGED + 64 * STAGES, UNKNOWN = HEAD + 64 };

int32_t cap_name_order(const char *name)
{
    int32_t i, k;
    const char *rest;
    if ((i = PLACE_IN(INSERT_ORDER, name)) >= 0) return i;
    if ((i = PLACE_IN(DRAFT_INPUTS, name)) >= 0) return INPUTS + i;
    if ((i = PLACE_IN(DRAFT_FIRST, name)) >= 0) return FIRST + i;
    if ((i = PLACE_IN(HEAD_ORDER, name)) >= 0) return HEAD + i;
    if (!staged(name, &k, &rest)) return UNKNOWN;
    if (strcmp(rest, "main_kv") == 0) return KVS + k;
    if (strcmp(rest, "window") == 0) return WINDOWS + k;
    i = PLACE_IN(STAGE_ORDER, rest);
    return i < 0 ? UNKNOWN : STAGED + 64 * k + i;
}

bool cap_name_known(const char *name) { return cap_name_order(name) != UNKNOWN; }

void cap_export_name(int32_t round, int32_t slot, const char *name, char out[CAP_EXPORT_NAME])
{
    int32_t k;
    if (slot == FMT_TAPE_NO_SLOT) snprintf(out, CAP_EXPORT_NAME, "round.%d.%s", round, name);
    else if (is_window(name, &k)) snprintf(out, CAP_EXPORT_NAME, "round.%d.window.%d.s%d", round, slot, k);
    else snprintf(out, CAP_EXPORT_NAME, "round.%d.insert.%d.%s", round, slot, name);
}

/* "{n}." at *p, n in 0 .. INT32_MAX without leading zeros; *p moves past the dot. */
static bool take_number(const char **p, int32_t *out)
{
    const char *s = *p;
    int64_t n = 0;
    if (*s == '0' && s[1] != '.') return false;
    for (; *s >= '0' && *s <= '9'; s++) {
        n = n * 10 + (*s - '0');
        if (n > INT32_MAX) return false;
    }
    if (s == *p || *s != '.') return false;
    *out = (int32_t)n;
    *p = s + 1;
    return true;
}

static bool take_word(const char **p, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(*p, word, n) != 0) return false;
    *p += n;
    return true;
}

bool cap_export_parse(const char *export_name, int32_t *round, int32_t *slot, char *name_out)
{
    const char *p = export_name;
    int32_t r, s = FMT_TAPE_NO_SLOT, k;
    char window[FMT_TAPE_NAME_BYTES];
    if (!take_word(&p, "round.") || !take_number(&p, &r)) return false;
    if (take_word(&p, "insert.")) {
        if (!take_number(&p, &s) || is_window(p, &k)) return false;
    } else if (take_word(&p, "window.")) {
        if (!take_number(&p, &s) || strlen(p) >= sizeof window - sizeof ".window") return false;
        snprintf(window, sizeof window, "%s.window", p);
        if (!is_window(window, &k)) return false;
        p = window;
    }
    if (*p == 0 || strlen(p) >= FMT_TAPE_NAME_BYTES) return false;
    for (const char *c = p; *c; c++) /* printable, and safe as a file name */
        if (*c <= ' ' || *c > '~' || *c == '/') return false;
    *round = r;
    *slot = s;
    memcpy(name_out, p, strlen(p) + 1);
    return true;
}

/* ---- the names of a tape ---- */

struct cap_names {
    cap_name *name;
    size_t count, capacity;
    uint32_t *bucket; /* index into name + 1, 0: free; a power of two, at most half full */
    size_t mask;
    size_t window; /* less one: a round's names lie within so many buckets, so that walking a round stays in the cache */
};

static size_t bucket_of(const cap_names *n, int32_t round, int32_t slot, const char *name)
{
    uint64_t h = 0xcbf29ce484222325u ^ (uint32_t)slot, start = (uint32_t)round * 0x9e3779b97f4a7c15u; /* FNV-1a */
    for (const char *p = name; *p; p++) h = (h ^ (uint8_t)*p) * 0x100000001b3u;
    h = (h ^ h >> 32) * 0x9e3779b97f4a7c15u;
    for (size_t i = ((size_t)(start >> 32) + ((size_t)(h >> 32) & n->window)) & n->mask;; i = (i + 1) & n->mask) {
        if (n->bucket[i] == 0) return i;
        const cap_name *at = &n->name[n->bucket[i] - 1];
        if (at->round == round && at->slot == slot && strcmp(at->name, name) == 0) return i;
    }
}

/* Orders by name: a tape keeps one pointer for a name, so few are worked out. A miss costs time only. */
enum { ORDERS_KNOWN = 1024 };
typedef struct known_order { const char *name; int32_t order; } known_order;

static int32_t order_of(known_order known[ORDERS_KNOWN], const char *name)
{
    known_order *k = &known[(uintptr_t)name / 16 % ORDERS_KNOWN];
    if (k->name != name) *k = (known_order){ name, cap_name_order(name) };
    return k->order;
}

static size_t largest_round(const fmt_tape *t)
{
    const int32_t *rounds;
    size_t first, n, largest = 0;
    for (size_t i = fmt_tape_rounds(t, &rounds); i > 0; i--) {
        fmt_tape_round_span(t, rounds[i - 1], &first, &n);
        if (n > largest) largest = n;
    }
    return largest;
}

err_code cap_names_make(const fmt_tape *t, cap_names **out, err *e)
{
    *out = NULL;
    known_order known[ORDERS_KNOWN] = { 0 };
    size_t n_records = fmt_tape_count(t), n_buckets = 16, window = 16, largest = largest_round(t);
    while (n_buckets < n_records * 2) n_buckets *= 2;
    while (window < largest * 4) window *= 2;
    cap_names *n = mem_alloc(1, sizeof *n);
    if (n) {
        n->mask = n_buckets - 1;
        n->window = window - 1;
        n->name = mem_alloc(n_records + 1, sizeof *n->name);
        n->bucket = mem_alloc(n_buckets, sizeof *n->bucket);
    }
    if (!n || !n->name || !n->bucket || n_records > INT32_MAX) {
        cap_names_free(n);
        return err_set(e, ERR_NOMEM, "%s: no memory for the names of %zu records", fmt_tape_path(t), n_records);
    }
    for (size_t i = 0; i < n_records; i++) {
        fmt_tape_record r;
        fmt_tape_at(t, i, &r);
        size_t at = bucket_of(n, r.key.round, r.key.slot, r.key.name);
        if (n->bucket[at] != 0) continue;
        n->name[n->count++] = (cap_name){ r.key.round, r.key.slot, r.key.name, (uint32_t)i, order_of(known, r.key.name) };
        n->bucket[at] = (uint32_t)n->count;
    }
    *out = n;
    return ERR_OK;
}

void cap_names_free(cap_names *n)
{
    if (!n) return;
    free(n->name);
    free(n->bucket);
    free(n);
}

size_t cap_names_count(const cap_names *n) { return n->count; }
const cap_name *cap_names_at(const cap_names *n, size_t i) { return &n->name[i]; }

int64_t cap_names_find(const cap_names *n, int32_t round, int32_t slot, const char *name)
{
    return (int64_t)n->bucket[bucket_of(n, round, slot, name)] - 1;
}
