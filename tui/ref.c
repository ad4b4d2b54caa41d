#include "tui/ref.h"

#include <inttypes.h>
#include <string.h>

#include "capture/reference.h"

bool tui_index_parse(const char *text, int64_t index[FMT_DIMS_MAX], int32_t *n)
{
    const char *p = text + strspn(text, " ");
    bool bracket = *p == '[';
    *n = 0;
    if (bracket) p++;
    do {
        p += strspn(p, " ,");
        if (*n == FMT_DIMS_MAX || !cap_number_take(&p, INT64_MAX, &index[*n])) return false;
        (*n)++;
        p += strspn(p, " ");
    } while (*p == ',' || (*p >= '0' && *p <= '9'));
    if (bracket && *p++ != ']') return false;
    return *p == 0;
}

bool tui_index_flat(const fmt_tensor *t, const int64_t *index, int32_t n, int64_t *flat)
{
    if (n == 1) {
        *flat = index[0];
        return index[0] < fmt_tensor_elems(t);
    }
    *flat = 0;
    for (int32_t d = 0; d < n; d++) {
        if (n != t->ndim || index[d] >= t->shape[d]) return false;
        *flat = *flat * t->shape[d] + index[d];
    }
    return n > 0;
}

const char *tui_index_text(const fmt_tensor *t, int64_t flat, char buf[128])
{
    int64_t index[FMT_DIMS_MAX];
    for (int32_t d = t->ndim - 1; d >= 0; d--) {
        index[d] = t->shape[d] ? flat % t->shape[d] : 0;
        flat = t->shape[d] ? flat / t->shape[d] : 0;
    }
    size_t at = (size_t)snprintf(buf, 128, "[");
    for (int32_t d = 0; d < t->ndim && at < 100; d++)
        at += (size_t)snprintf(buf + at, 128 - at, "%s%" PRId64, d ? ", " : "", index[d]);
    snprintf(buf + at, 128 - at, "]");
    return buf;
}

/* Everything behind the tape's name. */
static bool take_place(const char *p, tui_ref *r)
{
    int64_t n;
    *r = (tui_ref){ .slot = FMT_TAPE_NO_SLOT };
    if (!cap_number_take(&p, INT32_MAX, &n)) return false;
    r->round = (int32_t)n;
    if (*p == 0) return true;
    if (*p++ != '/') return false;
    r->has_slot = true;
    if (*p == '-') p++;
    else if (cap_number_take(&p, INT32_MAX, &n)) r->slot = (int32_t)n;
    else return false;
    if (*p == 0) return true;
    if (*p++ != '/') return false;
    size_t name_bytes = strcspn(p, "@[");
    if (name_bytes == 0 || name_bytes >= sizeof r->name) return false;
    memcpy(r->name, p, name_bytes);
    p += name_bytes;
    if (p[0] == '@' && p[1] == 'r') {
        p += 2;
        if (!cap_number_take(&p, INT32_MAX, &n)) return false;
    }
    return *p == 0 || (*p == '[' && tui_index_parse(p, r->index, &r->n_index));
}

err_code tui_ref_parse(const char *text, tui_ref *out, err *e)
{
    if (take_place(text, out)) return ERR_OK;
    for (const char *colon = strchr(text, ':'); colon; colon = strchr(colon + 1, ':')) /* a tape's name may hold colons */
        if (take_place(colon + 1, out)) return ERR_OK;
    return err_set(e, ERR_ARG, "found reference '%s', wanted [TAPE:]ROUND[/SLOT[/VALUE[INDEX]]], SLOT '-' for none", text);
}
