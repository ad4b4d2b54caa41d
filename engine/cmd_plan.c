#include "engine/cmd_common.h"
#include "engine/commands.h"
#include "engine/footprint.h"
#include "engine/program.h"

#include <string.h>

/* 327,680 positions and 8 slots: the deployment whose table this reproduces. */
typedef struct plan_options {
    const char *arm, *head, *markov, *combine;
    int64_t tp, positions, slots;
} plan_options;

static const cli_option OPTIONS[] = {
    { "--arm", "ARM", "any of sparktape arms (default: native-packed)", CLI_STR, offsetof(plan_options, arm) },
    { "--tp", "N", "ranks (default: 1)", CLI_INT, offsetof(plan_options, tp) },
    { "--positions", "N", "longest request (default: 327680)", CLI_INT, offsetof(plan_options, positions) },
    { "--slots", "N", "requests at a time (default: 8)", CLI_INT, offsetof(plan_options, slots) },
    { "--head", "NAME", "official or k6 (default: the arm's)", CLI_STR, offsetof(plan_options, head) },
    { "--markov", "NAME", "cache: the control's bias cache (default: the arm's)", CLI_STR, offsetof(plan_options, markov) },
    { "--combine", "NAME", "exact or fused: which ops combine the experts", CLI_STR, offsetof(plan_options, combine) },
};

enum { POSITIONS_MAX = 1 << 24 /* the last position that fp32 counts exactly */, SLOTS_MAX = 4096 };

typedef struct plan {
    eng_config config;
    const eng_arm *arm;
    eng_footprint_for wanted;
    eng_combine combine;
    eng_footprint rank[ENG_RANKS_MAX];
    eng_program *program[2]; /* insert, draft */
} plan;

static err_code in_range(const char *what, int64_t v, int64_t lo, int64_t hi, err *e)
{
    if (v >= lo && v <= hi) return ERR_OK;
    return err_set(e, ERR_ARG, "%s: found %lld, wanted %lld to %lld", what, (long long)v, (long long)lo, (long long)hi);
}

static err_code plan_parse(const plan_options *o, plan *p, err *e)
{
    p->arm = eng_arm_find(o->arm);
    if (!p->arm) return err_set(e, ERR_ARG, "--arm: found '%s', wanted one that sparktape arms lists", o->arm);
    if (p->arm->unsharded && o->tp != 1)
        return err_set(e, ERR_ARG, "--tp: found %lld, wanted 1: the arm %s is one rank", (long long)o->tp, p->arm->name);
    TRY(in_range("--tp", o->tp, 1, ENG_RANKS_MAX, e));
    TRY(in_range("--positions", o->positions, 1, POSITIONS_MAX, e));
    TRY(in_range("--slots", o->slots, 1, SLOTS_MAX, e));
    if (o->head && strcmp(o->head, "official") != 0 && strcmp(o->head, "k6") != 0)
        return err_set(e, ERR_ARG, "--head: found '%s', wanted official or k6", o->head);
    if (o->markov && strcmp(o->markov, "cache") != 0)
        return err_set(e, ERR_ARG, "--markov: found '%s', wanted cache", o->markov);
    if (strcmp(o->combine, "exact") != 0 && strcmp(o->combine, "fused") != 0)
        return err_set(e, ERR_ARG, "--combine: found '%s', wanted exact or fused", o->combine);
    bool k6 = o->head && strcmp(o->head, "k6") == 0;
    if (o->head && p->arm->fixed_head && k6 != (p->arm->head == ENG_REP_EXL3))
        return err_set(e, ERR_ARG, "--head %s: the arm %s has no head but %s", o->head, p->arm->name,
                       k6 ? "the official one" : "K6");
    p->combine = strcmp(o->combine, "fused") == 0 ? ENG_COMBINE_FUSED : ENG_COMBINE_EXACT;
    p->wanted = (eng_footprint_for){ (int32_t)o->tp, o->positions, (int32_t)o->slots, k6, o->markov != NULL };
    return ERR_OK;
}

static err_code plan_make(const char *model, plan *p, err *e)
{
    TRY(eng_config_read(model, &p->config, e));
    for (int32_t r = 0; r < p->wanted.n_ranks; r++)
        TRY(eng_footprint_of(&p->config, p->arm, &p->wanted, r, &p->rank[r], e));
    eng_reps reps = eng_arm_reps(p->arm);
    if (p->wanted.head_exl3) reps.head = ENG_REP_EXL3;
    TRY(eng_program_make(&p->config, ENG_STEP_INSERT, p->wanted.n_ranks, p->combine, &reps, &p->program[0], e));
    return eng_program_make(&p->config, ENG_STEP_DRAFT, p->wanted.n_ranks, p->combine, &reps, &p->program[1], e);
}

/* ---- text ---- */

static const char *const STEP_NAMES[] = { "insert", "draft" };
static const char *const PLACE_NAMES[] = { "replicated", "sharded", "partial" };

/* One row inserted; one slot drafted. */
static eng_extents extents(const plan *p, int step)
{
    return eng_extents_of(&p->config, step == 0 ? 1 : p->config.block, 1, p->config.block);
}

static void print_footprint(const plan *p)
{
    printf("%s, tp %d, %lld positions, %d slots: MiB per rank\n\n%-20s", p->arm->name, p->wanted.n_ranks,
           (long long)p->wanted.positions, p->wanted.slots, "part");
    for (int32_t r = 0; r < p->wanted.n_ranks; r++) printf("   rank %d  ", r);
    printf("\n");
    for (int i = 0; i < ENG_FOOT_COUNT; i++) {
        if (p->rank[0].bytes[i] == 0) continue;
        printf("%-20s", eng_foot_name((eng_foot)i));
        for (int32_t r = 0; r < p->wanted.n_ranks; r++) printf("%9.1f  ", (double)p->rank[r].bytes[i] / 0x1p20);
        printf(" %s\n", eng_foot_what((eng_foot)i));
    }
    printf("%-20s", "total");
    for (int32_t r = 0; r < p->wanted.n_ranks; r++) printf("%9.1f  ", (double)p->rank[r].total_bytes / 0x1p20);
    printf(" before activations\n");
}

static void print_value(const plan *p, const eng_program *g, int32_t index, const eng_extents *x)
{
    const eng_value *v = &g->value[index];
    int64_t shape[3];
    eng_value_shape(g, index, x, 0, p->wanted.n_ranks, shape);
    printf("%s %s [", v->name, fmt_dtype_name(v->dtype));
    for (int32_t d = 0; d < v->ndim; d++) printf("%s%lld", d ? ", " : "", (long long)shape[d]);
    printf("] %s", PLACE_NAMES[v->place]);
    if (v->place == FMT_PLACE_SHARDED) printf("(%d)", v->axis);
    printf(" %s", eng_level_name(v->level));
}

static void print_program(const plan *p, int step)
{
    const eng_program *g = p->program[step];
    eng_extents x = extents(p, step);
    printf("\n%s: %d ops over %d values; shapes of rank 0 with %s\n\n", STEP_NAMES[step], g->n_ops, g->n_values,
           step == 0 ? "one row" : "one slot");
    for (int32_t i = 0; i < g->n_ops; i++) {
        const eng_op *op = &g->op[i];
        printf("%4d  %-22s %-16s", i, op->name, eng_kind_name(op->kind));
        for (int32_t j = 0; j < op->n_in; j++) printf(" %s", g->value[op->in[j]].name);
        printf("\n");
        for (int32_t j = 0; j < op->n_out; j++) {
            printf("      -> ");
            print_value(p, g, op->out[j], &x);
            printf("\n");
        }
    }
}

/* ---- json ---- */

static json_t *footprint_json(const eng_footprint *f, int32_t rank)
{
    json_t *parts = json_object();
    for (int i = 0; i < ENG_FOOT_COUNT; i++)
        json_object_set_new(parts, eng_foot_name((eng_foot)i), json_integer((json_int_t)f->bytes[i]));
    return json_pack("{s:i,s:o,s:I}", "rank", rank, "bytes", parts, "total_bytes", (json_int_t)f->total_bytes);
}

static json_t *value_json(const plan *p, const eng_program *g, int32_t index, const eng_extents *x)
{
    const eng_value *v = &g->value[index];
    int64_t shape[3];
    eng_value_shape(g, index, x, 0, p->wanted.n_ranks, shape);
    json_t *dims = json_array();
    for (int32_t d = 0; d < v->ndim; d++) json_array_append_new(dims, json_integer(shape[d]));
    return json_pack("{s:s,s:s,s:o,s:s,s:i,s:s}", "name", v->name, "dtype", fmt_dtype_name(v->dtype), "shape", dims,
                     "place", PLACE_NAMES[v->place], "axis", v->place == FMT_PLACE_SHARDED ? v->axis : -1, "level",
                     eng_level_name(v->level));
}

static json_t *program_json(const plan *p, int step)
{
    const eng_program *g = p->program[step];
    eng_extents x = extents(p, step);
    json_t *ops = json_array();
    for (int32_t i = 0; i < g->n_ops; i++) {
        const eng_op *op = &g->op[i];
        json_t *in = json_array(), *out = json_array();
        for (int32_t j = 0; j < op->n_in; j++) json_array_append_new(in, json_string(g->value[op->in[j]].name));
        for (int32_t j = 0; j < op->n_out; j++) json_array_append_new(out, value_json(p, g, op->out[j], &x));
        json_array_append_new(ops, json_pack("{s:s,s:s,s:o,s:o}", "name", op->name, "kind", eng_kind_name(op->kind),
                                             "inputs", in, "outputs", out));
    }
    return json_pack("{s:s,s:o}", "step", STEP_NAMES[step], "ops", ops);
}

static err_code print_json(const plan *p, err *e)
{
    json_t *ranks = json_array(), *programs = json_array();
    for (int32_t r = 0; r < p->wanted.n_ranks; r++) json_array_append_new(ranks, footprint_json(&p->rank[r], r));
    for (int step = 0; step < 2; step++) json_array_append_new(programs, program_json(p, step));
    json_t *j = json_pack("{s:i,s:s,s:i,s:I,s:i,s:o,s:o}", "schema", CMD_SCHEMA, "arm", p->arm->name, "tp",
                          p->wanted.n_ranks, "positions", (json_int_t)p->wanted.positions, "slots",
                          p->wanted.slots, "ranks", ranks, "programs", programs);
    err_code rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "no memory for the plan");
    json_decref(j);
    return rc;
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    (void)exit_status;
    plan_options o = { .arm = "native-packed", .combine = "exact", .tp = 1, .positions = 327680, .slots = 8 };
    cli_common common;
    cli_args args;
    TRY(cli_parse(self, argc, argv, &o, &common, &args, e));
    if (common.help) { cli_help(self); return ERR_OK; }
    plan p = { 0 };
    TRY(plan_parse(&o, &p, e));
    err_code rc = plan_make(args.item[0], &p, e);
    if (rc == ERR_OK && common.json) rc = print_json(&p, e);
    if (rc == ERR_OK && !common.json) {
        print_footprint(&p);
        for (int step = 0; step < 2; step++) print_program(&p, step);
    }
    for (int step = 0; step < 2; step++) eng_program_free(p.program[step]);
    return rc;
}

const cli_command CMD_PLAN = { "plan", "MODEL", "bytes per rank by part, and the step's op list (config.json is enough)",
                               OPTIONS, sizeof OPTIONS / sizeof *OPTIONS, run };
