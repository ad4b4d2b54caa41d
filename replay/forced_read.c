#include "replay/forced_state.h"

#include "base/mem.h"
#include "replay/value.h"

err_code rpl_forced_bad(const rpl_forced *f, int32_t round, int32_t slot, const char *name, const char *found,
                        const char *wanted, err *e)
{
    char of_slot[32] = "";
    if (slot != FMT_TAPE_NO_SLOT) snprintf(of_slot, sizeof of_slot, " slot %d", slot);
    return err_set(e, ERR_INPUT, "%s: round %d%s %s: found %s, wanted %s", fmt_tape_path(f->tape), round, of_slot, name,
                   found, wanted);
}

err_code rpl_forced_get(const rpl_forced *f, int32_t round, int32_t slot, const char *name, const fmt_tensor *want,
                        cap_value *v, err *e)
{
    const fmt_tape_key key = { round, slot, 0, name };
    TRY(cap_joined_get(f->tape, &key, v, e));
    if (v->tensor.dtype == want->dtype && rpl_same_shape(&v->tensor, want)) return ERR_OK;
    char found[96], wanted[96];
    return rpl_forced_bad(f, round, slot, name, fmt_tensor_text(&v->tensor, found, sizeof found),
                          fmt_tensor_text(want, wanted, sizeof wanted), e);
}

/* ---- values that cannot be read ---- */

static bool is_lost(const rpl_forced *f, int64_t name) { return f->lost && name >= 0 && f->lost[name]; }

bool rpl_forced_lost(const rpl_forced *f, int32_t round, int32_t slot, const char *name)
{
    return is_lost(f, cap_names_find(f->names, round, slot, name));
}

err_code rpl_forced_leave_damaged(rpl_forced *f, bool *found, err *e)
{
    *found = false;
    if (f->lost) return ERR_OK;
    f->lost = mem_alloc(cap_names_count(f->names) + 1, sizeof *f->lost);
    if (!f->lost) return err_set(e, ERR_NOMEM, "forced run: no memory for the names");
    for (size_t i = 0; i < fmt_tape_count(f->tape); i++) {
        fmt_tape_record r;
        fmt_tape_at(f->tape, i, &r);
        if (r.tier != FMT_TIER_TENSOR) continue;
        err_code rc = cap_record_get(f->tape, i, &f->scratch[0], e);
        if (rc == ERR_NOMEM) return rc;
        int64_t name = rc == ERR_FORMAT ? cap_names_find(f->names, r.key.round, r.key.slot, r.key.name) : -1;
        if (name >= 0) *found = f->lost[name] = true;
    }
    return ERR_OK;
}

bool rpl_forced_has(const rpl_forced *f, int32_t round, int32_t slot, const char *name)
{
    int64_t at = cap_names_find(f->names, round, slot, name);
    if (at < 0 || is_lost(f, at)) return false;
    fmt_tape_record r;
    fmt_tape_at(f->tape, cap_names_at(f->names, (size_t)at)->first_record, &r);
    return r.tier == FMT_TIER_TENSOR;
}

int64_t rpl_forced_length(const rpl_forced *f, int32_t round, int32_t slot, const char *name)
{
    int64_t at = cap_names_find(f->names, round, slot, name);
    if (at < 0 || is_lost(f, at)) return 0;
    int64_t record = cap_names_at(f->names, (size_t)at)->first_record, length = 0;
    for (; record >= 0; record = slot == FMT_TAPE_NO_SLOT ? -1 : fmt_tape_again(f->tape, (size_t)record)) {
        fmt_tape_record r;
        fmt_tape_at(f->tape, (size_t)record, &r);
        if (r.tensor.ndim != 1 || r.tier != FMT_TIER_TENSOR) return 0;
        length += r.tensor.shape[0];
    }
    return length;
}

err_code rpl_forced_vector(const rpl_forced *f, int32_t round, int32_t slot, const char *name, int64_t n, cap_value *v,
                           err *e)
{
    fmt_tensor want = fmt_tensor_make(FMT_DTYPE_I32, NULL, 1, &n);
    return rpl_forced_get(f, round, slot, name, &want, v, e);
}

err_code rpl_forced_range(const rpl_forced *f, int32_t round, const char *name, const int32_t *v, int64_t n,
                          int32_t limit, err *e)
{
    for (int64_t i = 0; i < n; i++)
        if (v[i] < 0 || v[i] >= limit)
            return err_set(e, ERR_INPUT, "%s: round %d %s[%lld]: found %d, wanted 0 to %d", fmt_tape_path(f->tape),
                           round, name, (long long)i, v[i], limit - 1);
    return ERR_OK;
}
