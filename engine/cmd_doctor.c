#include <dirent.h>
#include <stddef.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "engine/cmd_common.h"
#include "engine/commands.h"
#include "engine/identity.h"
#include "engine/system.h"
#include "formats/commands.h"
#include "kernels/kernels.h"

typedef struct words {
    bool system;
    int64_t positions, slots;
} words;

static const cli_option OPTIONS[] = {
    { "--system", NULL, "this machine instead: processor, cards, peers; with a checkpoint, or its config.json alone, "
      "which arms fit where", CLI_FLAG, offsetof(words, system) },
    { "--positions", "N", "longest request, with --system (default: 327680)", CLI_COUNT, offsetof(words, positions) },
    { "--slots", "N", "requests at a time, with --system (default: 8)", CLI_COUNT, offsetof(words, slots) },
};

enum { WAYS = 4, ARMS_MAX = 32 };
static const char *const WAY_NAMES[WAYS] = { "processor", "one card", "two cards", "two on one" };
static const char *const WAY_KEYS[WAYS] = { "cpu", "card", "nccl", "emulated" };

typedef struct survey {
    uint64_t memory_bytes;
    eng_cards cards;
    int32_t n_arms;
    eng_system_arm arm[ARMS_MAX];
    bool config_only; /* the folder has no tensors: what they would forbid is not known */
} survey;

static const eng_way *way_of(const eng_system_arm *a, int way)
{
    const eng_way *all[WAYS] = { &a->cpu, &a->card, &a->nccl, &a->emulated };
    return all[way];
}

static double gib(uint64_t bytes) { return (double)bytes / 0x1p30; }

/* ---- text ---- */

static void print_machine(const survey *s)
{
    const eng_cards *c = &s->cards;
    printf("sparktape  %s, %s", eng_build(), c->built ? "with CUDA" : "built without CUDA");
    if (c->runtime) printf(" %d.%d (driver %d.%d)", c->runtime / 1000, c->runtime % 1000 / 10, c->driver / 1000,
                           c->driver % 1000 / 10);
    printf("%s%s\n", c->built ? ", NCCL " : "", c->built ? c->nccl : "");
    printf("processor  %s, %d threads, %s; %.1f GiB of memory free\n", cpu_name(), cpu_count(),
           krn_isa_name(krn_isa_best()), gib(s->memory_bytes));
    if (c->n == 0) printf("cards      %s\n", c->built ? "none: no driver, or no card" : "not looked for");
    for (int32_t i = 0; i < c->n && i < ENG_CARDS_MAX; i++) {
        const eng_card *k = &c->card[i];
        printf("card %-5d %s, sm_%d%d, %d SMs, %.1f of %.1f GiB free", i, k->name, k->sm_major, k->sm_minor, k->n_sm,
               gib(k->memory_free_bytes), gib(k->memory_bytes));
        for (int32_t p = 0; p < ENG_CARDS_MAX; p++)
            if (k->reaches >> p & 1) printf(", reaches card %d", p);
        puts("");
    }
    if (c->n > ENG_CARDS_MAX) printf("           and %d more\n", c->n - ENG_CARDS_MAX);
}

/* A cell is "yes" or the number of a note below the table. */
static void print_arms(const survey *s, const char *model)
{
    const char *note[ARMS_MAX * WAYS];
    int n_notes = 0;
    printf("\n%-24s %8s %8s", "GiB a rank", "tp 1", "tp 2");
    for (int k = 0; k < WAYS; k++) printf("  %10s", WAY_NAMES[k]);
    puts("");
    for (int32_t i = 0; i < s->n_arms; i++) {
        const eng_system_arm *a = &s->arm[i];
        printf("%-24s %8.2f ", a->arm->name, gib(a->one_bytes));
        if (a->two_bytes && !a->arm->unsharded) printf("%8.2f", gib(a->two_bytes));
        else printf("%8s", "-");
        for (int k = 0; k < WAYS; k++) {
            const char *why = way_of(a, k)->why;
            int at = 0;
            while (at < n_notes && strcmp(note[at], why) != 0) at++;
            if (why[0] && at == n_notes) note[n_notes++] = why;
            if (why[0]) printf("  %9d)", at + 1);
            else printf("  %10s", "yes");
        }
        puts("");
    }
    for (int i = 0; i < n_notes; i++) printf("%s%3d) %s\n", i ? "" : "\n", i + 1, note[i]);
    if (s->config_only)
        printf("\n%s has no tensors: by its config.json alone, as if it had all that an arm reads\n", model);
}

/* ---- json ---- */

/* *fine turns false where something could not be added. */
static json_t *card_json(const eng_card *c, bool *fine)
{
    json_t *reaches = json_array();
    for (int32_t i = 0; i < ENG_CARDS_MAX; i++)
        if (c->reaches >> i & 1) *fine = json_array_append_new(reaches, json_integer(i)) == 0 && *fine;
    return json_pack("{s:s, s:i, s:i, s:I, s:I, s:o}", "name", c->name, "sm", c->sm_major * 10 + c->sm_minor,
                     "multiprocessors", c->n_sm, "memory_bytes", (json_int_t)c->memory_bytes, "memory_free_bytes",
                     (json_int_t)c->memory_free_bytes, "reaches", reaches);
}

static json_t *arm_json(const eng_system_arm *a, bool *fine)
{
    json_t *o = json_pack("{s:s, s:I, s:I}", "arm", a->arm->name, "tp1_bytes", (json_int_t)a->one_bytes, "tp2_bytes",
                          (json_int_t)a->two_bytes);
    for (int k = 0; k < WAYS; k++) /* null: it runs */
        *fine = json_object_set_new(o, WAY_KEYS[k], way_of(a, k)->why[0] ? json_string(way_of(a, k)->why)
                                                                         : json_null()) == 0 && *fine;
    return o;
}

static err_code print_json(const survey *s, err *e)
{
    const eng_cards *c = &s->cards;
    json_t *cards = json_array(), *arms = json_array();
    bool fine = true;
    for (int32_t i = 0; i < c->n && i < ENG_CARDS_MAX; i++)
        fine = json_array_append_new(cards, card_json(&c->card[i], &fine)) == 0 && fine;
    for (int32_t i = 0; i < s->n_arms; i++)
        fine = json_array_append_new(arms, arm_json(&s->arm[i], &fine)) == 0 && fine;
    json_t *j = json_pack("{s:i, s:s, s:{s:s, s:i, s:s, s:I}, s:{s:b, s:i, s:i, s:s}, s:o, s:o, s:b}", "schema", CMD_SCHEMA,
                          "build", eng_build(), "processor", "name", cpu_name(), "threads", cpu_count(), "isa",
                          krn_isa_name(krn_isa_best()), "memory_free_bytes", (json_int_t)s->memory_bytes, "cuda", "built",
                          c->built, "driver", c->driver, "runtime", c->runtime, "nccl", c->nccl, "cards", cards, "arms",
                          arms, "config_only", s->config_only);
    err_code rc = j && fine ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "doctor: no memory for the report");
    json_decref(j);
    return rc;
}

/* ---- run ---- */

/* A checkpoint's shards, or the index that names them. A folder that cannot be listed is opened, and says why it cannot. */
static bool has_tensors(const char *folder)
{
    DIR *d = opendir(folder);
    bool found = !d;
    for (struct dirent *entry; d && !found && (entry = readdir(d));) {
        const char *dot = strstr(entry->d_name, ".safetensors");
        found = dot && (!dot[sizeof ".safetensors" - 1] || strcmp(entry->d_name, "model.safetensors.index.json") == 0);
    }
    if (d) closedir(d);
    return found;
}

static err_code look_at(survey *s, const char *model, const words *w, bool quiet, err *e)
{
    s->memory_bytes = cpu_memory_free_bytes();
    TRY(eng_cards_find(&s->cards, e));
    if (!model) return ERR_OK;
    eng_weights *weights = NULL;
    eng_config config;
    TRY(eng_config_read(model, &config, e));
    s->config_only = !has_tensors(model);
    if (!s->config_only) TRY(eng_weights_open(model, quiet, &weights, e));
    err_code rc = ERR_OK;
    for (size_t i = 0; i < eng_arm_count() && i < ARMS_MAX && rc == ERR_OK; i++)
        rc = eng_system_arm_of(&config, weights, eng_arm_at(i), w->positions, (int32_t)w->slots, s->memory_bytes, &s->cards,
                               &s->arm[s->n_arms++], e);
    eng_weights_close(weights);
    return rc;
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    words w = { 0 };
    cli_common common;
    cli_args args;
    survey s = { 0 };
    *exit_status = 0;
    TRY(cli_parse(self, argc, argv, &w, &common, &args, e));
    if (common.help) { cli_help(self); return ERR_OK; }
    const char *path = args.count ? args.item[0] : NULL;
    if (!w.system) {
        if (!path) return err_set(e, ERR_ARG, "found no tape, wanted TAPE, or --system [MODEL]");
        if (w.positions || w.slots) return err_set(e, ERR_ARG, "--positions, --slots: wanted with --system MODEL");
        return fmt_doctor(path, common.json, exit_status, e);
    }
    if (!w.positions) w.positions = 327680;
    if (!w.slots) w.slots = 8;
    if (w.positions > 1 << 24 || w.slots > 4096)
        return err_set(e, ERR_ARG, "--positions, --slots: found %lld, %lld, wanted at most %d, 4096",
                       (long long)w.positions, (long long)w.slots, 1 << 24);
    TRY(look_at(&s, path, &w, common.quiet, e));
    if (common.json) return print_json(&s, e);
    print_machine(&s);
    if (s.n_arms) print_arms(&s, path);
    return ERR_OK;
}

const cli_command CMD_DOCTOR = { "doctor", "[TAPE]", "reads all of a tape, names every damage (exit 1); or the machine",
                                 OPTIONS, COUNT_OF(OPTIONS), run };
