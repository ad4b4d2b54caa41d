#include "capture/reference.h"

#include "base/mem.h"

#include <errno.h>

bool cap_number_take(const char **p, int64_t hi, int64_t *out)
{
    if (**p < '0' || **p > '9') return false;
    char *end;
    errno = 0;
    long long v = strtoll(*p, &end, 10);
    if (errno || v > hi) return false;
    *p = end;
    *out = v;
    return true;
}

/* "@r1" and "[2,5]" behind the value's name. */
static bool suffixes_at(const char *p, cap_reference *r)
{
    bool good = true;
    int64_t n;
    while (*p && good) {
        if (p[0] == '@' && p[1] == 'r' && r->rank == FMT_TAPE_NO_RANK) {
            p += 2;
            good = cap_number_take(&p, INT32_MAX, &n);
            if (good) r->rank = (int32_t)n;
        } else if (p[0] == '[' && !r->indexed) {
            r->indexed = true;
            do {
                p++;
                while (*p == ' ') p++;
                good = r->n_index < FMT_DIMS_MAX && cap_number_take(&p, INT64_MAX, &r->index[r->n_index]);
                r->n_index++;
            } while (good && *p == ',');
            good = good && *p == ']';
            if (good) p++;
        } else {
            good = false;
        }
    }
    return good;
}

/* "ROUND/SLOT/VALUE" with what may follow. *name: the value's, of n bytes. */
static bool place_at(const char *p, cap_reference *r, const char **name, size_t *n)
{
    int64_t round, slot = FMT_TAPE_NO_SLOT;
    *r = (cap_reference){ .rank = FMT_TAPE_NO_RANK };
    if (!cap_number_take(&p, INT32_MAX, &round) || *p++ != '/') return false;
    if (*p == '-') p++;
    else if (!cap_number_take(&p, INT32_MAX, &slot)) return false;
    if (*p++ != '/') return false;
    r->round = (int32_t)round;
    r->slot = (int32_t)slot;
    *name = p;
    *n = strcspn(p, "@[");
    return *n > 0 && suffixes_at(p + *n, r);
}

err_code cap_reference_parse(const char *text, cap_reference *out, err *e)
{
    const char *name = NULL, *at = text + strlen(text);
    size_t n = 0;
    while (at > text && !(at[-1] == ':' && place_at(at, out, &name, &n))) at--; /* the last colon that a place follows */
    if (at == text && !place_at(text, out, &name, &n)) {
        *out = (cap_reference){ 0 };
        return err_set(e, ERR_ARG, "found '%s', wanted TAPE:ROUND/SLOT/VALUE with SLOT '-' for none, then @rRANK and "
                       "[INDEX] if need be", text);
    }
    out->value = strndup(name, n);
    if (at > text) out->tape = strndup(text, (size_t)(at - text) - 1);
    if (out->value && (out->tape || at == text)) return ERR_OK;
    cap_reference_fini(out);
    return err_set(e, ERR_NOMEM, "no memory for a reference");
}

void cap_reference_fini(cap_reference *r)
{
    free(r->tape);
    free(r->value);
    *r = (cap_reference){ 0 };
}

err_code cap_reference_of_arguments(const char *a, const char *b, cap_reference *out, err *e)
{
    const char *tape = a;
    err_code rc = cap_reference_parse(b ? b : a, out, e);
    if (b && rc == ERR_ARG && cap_reference_parse(a, out, NULL) == ERR_OK) {
        tape = b;
        rc = ERR_OK;
    }
    if (rc != ERR_OK) return rc;
    if (!b && !out->tape) rc = err_set(e, ERR_ARG, "found '%s' without a tape, wanted TAPE:ROUND/SLOT/VALUE", a);
    else if (b && out->tape && strcmp(out->tape, tape) != 0)
        rc = err_set(e, ERR_ARG, "found the tape %s and a reference to %s, wanted one tape", tape, out->tape);
    else if (b && !out->tape && !(out->tape = mem_strdup(tape))) rc = err_set(e, ERR_NOMEM, "no memory for a reference");
    if (rc != ERR_OK) cap_reference_fini(out);
    return rc;
}
