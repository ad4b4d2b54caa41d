#include "replay/coverage.h"

#include <string.h>

err_code rpl_shard_parse(const char *text, int32_t *i, int32_t *n, err *e)
{
    int64_t a, b;
    char part[16];
    *i = *n = 1;
    if (!text) return ERR_OK;
    const char *slash = strchr(text, '/');
    size_t length = slash ? (size_t)(slash - text) : sizeof part;
    if (length >= sizeof part) return err_set(e, ERR_ARG, "--shard: found '%s', wanted I/N such as 1/4", text);
    memcpy(part, text, length);
    part[length] = 0;
    TRY(cli_int(slash + 1, "--shard, N", 1, 1 << 20, &b, e));
    TRY(cli_int(part, "--shard, I", 1, b, &a, e));
    *i = (int32_t)a;
    *n = (int32_t)b;
    return ERR_OK;
}

bool rpl_tape_damaged(const fmt_tape *t)
{
    const fmt_tape_fault *faults;
    return fmt_tape_damage(t, &faults) > 0 || !fmt_tape_finished(t);
}

bool rpl_warn_of_damage(const fmt_tape *t)
{
    const fmt_tape_fault *faults;
    size_t n = fmt_tape_damage(t, &faults);
    if (n > 0)
        fprintf(stderr, "%s is damaged (%s): what is left is judged; sparktape doctor says more\n", fmt_tape_path(t),
                faults[0].what);
    else if (!fmt_tape_finished(t)) fprintf(stderr, "%s is unfinished: what is there is judged\n", fmt_tape_path(t));
    return rpl_tape_damaged(t);
}

err_code rpl_say_recover(const fmt_tape *t, err_code rc, err *e)
{
    if (rc != ERR_FORMAT || !e || strstr(e->msg, "sparktape recover")) return rc;
    const err why = *e;
    return err_set(e, rc, "%s; sparktape recover %s -o OUT keeps the rest", why.msg, fmt_tape_path(t));
}

static bool passes(const char *verdict) { return strcmp(verdict, "PASS") == 0 || strcmp(verdict, "SAME") == 0; }

bool rpl_coverage_empty(const rpl_coverage *c) { return c->n_shards > 1 && c->n_rounds_wanted == 0 && c->n_rounds_all > 0; }

const char *rpl_coverage_verdict(const rpl_coverage *c, const char *verdict)
{
    if (rpl_coverage_empty(c) && !c->damaged) return "EMPTY";
    if ((c->interrupted || c->damaged) && (!verdict || passes(verdict))) return "PARTIAL";
    return verdict ? verdict : "FAIL";
}

int rpl_coverage_exit(const char *verdict) { return passes(verdict) || strcmp(verdict, "EMPTY") == 0 ? 0 : 1; }

void rpl_coverage_print(const rpl_coverage *c)
{
    if (rpl_coverage_empty(c))
        printf("empty      nothing in this shard: part %d of %d parts of %d rounds\n", c->shard, c->n_shards,
               c->n_rounds_all);
    if (c->damaged)
        printf("partial    the tape is damaged or unfinished: what is left of it was judged; sparktape recover T -o OUT "
               "makes a whole one of that\n");
    if (c->interrupted) printf("partial    interrupted: %d of %d rounds done\n", c->n_rounds, c->n_rounds_wanted);
}

json_t *rpl_coverage_json(const rpl_coverage *c, json_t *j)
{
    json_t *more = json_pack("{s:i, s:i, s:b, s:b, s:{s:i, s:i}}", "rounds", (int)c->n_rounds, "rounds_wanted",
                             (int)c->n_rounds_wanted, "partial", c->interrupted || c->damaged, "damaged", c->damaged,
                             "shard", "i", (int)c->shard, "n", (int)c->n_shards);
    bool fine = j && more && json_object_update(j, more) == 0;
    json_decref(more);
    if (fine) return j;
    json_decref(j);
    return NULL;
}
