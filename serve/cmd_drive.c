#include "base/mem.h"
#include "engine/cmd_common.h"
#include "serve/commands.h"
#include "serve/drive.h"

#include <math.h>
#include <string.h>

typedef struct drive_words {
    const char *script, *tape, *check, *client, *arm, *checkpoint, *faults, *key, *rate;
    int64_t concurrency, repeat, positions, timeout, awake;
} drive_words;

static const cli_option OPTIONS[] = {
    { "--script", "S", "the traffic: a script, or an export", CLI_IN, offsetof(drive_words, script) },
    { "--tape", "T.tape", "the traffic: a tape's own rounds, which need their taps", CLI_IN, offsetof(drive_words, tape) },
    { "--check", "T.tape", "a recording of the same rounds: every answer must equal it bit for bit", CLI_IN,
      offsetof(drive_words, check) },
    { "--concurrency", "N", "clients; the slots are dealt out among them (default: 1)", CLI_COUNT,
      offsetof(drive_words, concurrency) },
    { "--repeat", "N", "play all rounds so many times (default: 1)", CLI_COUNT, offsetof(drive_words, repeat) },
    { "--rate", "R", "rounds a second of all clients together (default: as fast as it goes)", CLI_STR,
      offsetof(drive_words, rate) },
    { "--faults", "LIST",
      "KIND:P,...@SEED: drop, delay, reorder, truncate, wrong-epoch, wrong-slot, half-open or all, with a probability",
      CLI_STR, offsetof(drive_words, faults) },
    { "--client", "NAME", "name in hello (default: drive)", CLI_STR, offsetof(drive_words, client) },
    { "--arm", "ARM", "refuse a worker with another arm", CLI_STR, offsetof(drive_words, arm) },
    { "--checkpoint", "SHA256", "refuse a worker with another checkpoint", CLI_STR, offsetof(drive_words, checkpoint) },
    { "--positions", "N", "longest request to negotiate (default: that of the traffic)", CLI_COUNT,
      offsetof(drive_words, positions) },
    { "--timeout", "S", "seconds to wait for a reply (default: 60)", CLI_COUNT, offsetof(drive_words, timeout) },
    { "--awake", "US", "a client polls for a reply so many microseconds before it sleeps; it takes a core (default: 0)",
      CLI_COUNT, offsetof(drive_words, awake) },
    { "--tls-key", "FILE", "pre-shared key of TLS", CLI_IN, offsetof(drive_words, key) },
};

/* What scripts and tapes are checked against: all that a client has to know of the model. */
static eng_config config_of(const srv_welcome *w)
{
    return (eng_config){ .dim = w->dim, .n_taps = w->n_taps, .block = w->block, .window = w->window, .vocab = w->vocab };
}

static json_t *counts_json(const char *const *name, const uint64_t *n, int count)
{
    json_t *out = json_object();
    for (int i = 0; i < count; i++)
        if (n[i]) json_object_set_new(out, name[i], json_integer((json_int_t)n[i]));
    return out;
}

/* How much longer the first round took than the median one; 0: there was none. */
static double first_of_median(const srv_drive_counts *n)
{
    double median_ns = (double)srv_histogram_quantile(&n->turn, 0.5);
    return median_ns > 0 ? (double)n->first_ns / median_ns : 0;
}

static json_t *report_json(const char *address, const srv_drive_counts *n, int32_t clients, double seconds)
{
    const char *fault[SRV_FAULT_COUNT], *refusal[SRV_REFUSAL_COUNT];
    for (int f = 0; f < SRV_FAULT_COUNT; f++) fault[f] = srv_fault_name((srv_fault)f);
    for (int r = 0; r < SRV_REFUSAL_COUNT; r++) refusal[r] = srv_refusal_name((srv_refusal)r);
    return json_pack("{s:i, s:s, s:i, s:f, s:I, s:f, s:I, s:I, s:I, s:o, s:o, s:I, s:I, s:I, s:s, s:f, s:f, s:o, s:o, s:o, "
                     "s:o, s:o}", "schema",
                     CMD_SCHEMA, "address", address, "clients", (int)clients, "seconds", seconds, "rounds",
                     (json_int_t)n->turns, "rounds_per_s", seconds > 0 ? (double)n->turns / seconds : 0.0, "inserts",
                     (json_int_t)n->inserts, "rows", (json_int_t)n->rows, "drafts", (json_int_t)n->drafts, "faults",
                     counts_json(fault, n->fault, SRV_FAULT_COUNT), "refused",
                     counts_json(refusal, n->refused, SRV_REFUSAL_COUNT), "recoveries", (json_int_t)n->recoveries,
                     "checked", (json_int_t)n->checked, "mismatches", (json_int_t)n->mismatches, "first_mismatch",
                     n->mismatch, "first_us", (double)n->first_ns * 1e-3, "first_of_median", first_of_median(n), "latency",
                     srv_histogram_json(&n->turn), "step", srv_histogram_json(&n->step), "send",
                     srv_histogram_json(&n->send), "queue", srv_histogram_json(&n->queue), "rest",
                     srv_histogram_json(&n->rest));
}

static void print_latency(const char *name, const srv_histogram *h)
{
    printf("%-8s %9llu %10.1f %10.1f %10.1f %10.1f %10.1f\n", name, (unsigned long long)h->count,
           (double)srv_histogram_quantile(h, 0.5) * 1e-3, (double)srv_histogram_quantile(h, 0.9) * 1e-3,
           (double)srv_histogram_quantile(h, 0.99) * 1e-3, (double)srv_histogram_quantile(h, 0.999) * 1e-3,
           (double)h->max_ns * 1e-3);
}

static void print_text(const srv_drive_counts *n, int32_t clients, double seconds)
{
    printf("%llu rounds by %d clients in %.2f s (%.1f a second): %llu inserts, %llu rows, %llu drafts\n",
           (unsigned long long)n->turns, clients, seconds, seconds > 0 ? (double)n->turns / seconds : 0.0,
           (unsigned long long)n->inserts, (unsigned long long)n->rows, (unsigned long long)n->drafts);
    for (int f = 0; f < SRV_FAULT_COUNT; f++)
        if (n->fault[f])
            printf("fault %-12s %llu, each answered as it must be\n", srv_fault_name((srv_fault)f),
                   (unsigned long long)n->fault[f]);
    printf("%-8s %9s %10s %10s %10s %10s %10s  us\n", "latency", "n", "p50", "p90", "p99", "p99.9", "max");
    print_latency("round", &n->turn);
    print_latency("  send", &n->send);
    print_latency("  queue", &n->queue);
    print_latency("  step", &n->step);
    print_latency("  rest", &n->rest);
    printf("first round %.1f us, %.2f of the median\n", (double)n->first_ns * 1e-3, first_of_median(n));
    if (!n->checked) return;
    printf("%llu of %llu drafts equal the recording\n", (unsigned long long)(n->checked - n->mismatches),
           (unsigned long long)n->checked);
    if (n->mismatches) printf("first difference: %s\n", n->mismatch);
}

static err_code plan_of(const drive_words *words, const srv_welcome *w, srv_plan **out, err *e)
{
    eng_config c = config_of(w);
    int32_t n = (int32_t)words->concurrency;
    TRY(words->script ? srv_plan_script(words->script, &c, n, out, e) : srv_plan_tape(words->tape, &c, n, out, e));
    err_code rc = words->check ? srv_plan_expect(*out, words->check, e) : ERR_OK;
    int32_t slots = 0;
    for (int32_t i = 0; i < n; i++) slots += srv_plan_part(*out, i)->slots_at_once;
    if (rc == ERR_OK && slots > SRV_SLOTS_MAX)
        rc = err_set(e, ERR_INPUT, "%s: %d clients need %d slots at once, wanted at most %d",
                     words->script ? words->script : words->tape, n, slots, SRV_SLOTS_MAX);
    if (rc == ERR_OK) return ERR_OK;
    srv_plan_close(*out);
    *out = NULL;
    return rc;
}

static err_code drive(const char *address, const drive_words *words, srv_drive_setup *s, bool json, bool *same, err *e)
{
    srv_welcome w;
    srv_plan *plan = NULL;
    srv_drive_counts *n = mem_alloc(1, sizeof *n);
    double seconds = 0;
    if (!n) return err_set(e, ERR_NOMEM, "no memory for the counts");
    err_code rc = srv_drive_meet(s, &w, e);
    if (rc == ERR_OK) rc = plan_of(words, &w, &plan, e);
    if (rc == ERR_OK) {
        s->plan = plan;
        s->positions = words->positions ? words->positions : srv_plan_positions(plan);
        rc = srv_drive(s, n, &seconds, e);
    }
    int32_t clients = 0;
    for (int32_t i = 0; plan && i < srv_plan_parts(plan); i++) clients += srv_plan_part(plan, i)->n_turns > 0;
    if (plan && json) { /* also after an error: what was done until then */
        json_t *line = report_json(address, n, clients, seconds);
        err_code printed = line ? fmt_json_print(stdout, line, rc == ERR_OK ? e : NULL)
                                : err_set(rc == ERR_OK ? e : NULL, ERR_NOMEM, "no memory for the report");
        json_decref(line);
        if (rc == ERR_OK) rc = printed;
    } else if (plan) print_text(n, clients, seconds);
    *same = n->mismatches == 0;
    srv_plan_close(plan);
    free(n);
    return rc;
}

static err_code parse_rate(const char *text, double *out, err *e)
{
    char *end;
    *out = 0;
    if (!text) return ERR_OK;
    *out = strtod(text, &end);
    if (end != text && !*end && *out > 0 && isfinite(*out)) return ERR_OK;
    return err_set(e, ERR_ARG, "--rate: found '%s', wanted rounds a second, more than 0", text);
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    drive_words words = { .concurrency = 1, .repeat = 1, .timeout = 60, .client = "drive", .arm = "",
                          .checkpoint = "" };
    cli_common common;
    cli_args args;
    srv_address address;
    bool same = true;
    *exit_status = 0;
    TRY(cli_parse(self, argc, argv, &words, &common, &args, e));
    if (common.help) {
        cli_help(self);
        return ERR_OK;
    }
    if (!words.script == !words.tape) return err_set(e, ERR_ARG, "found %s, wanted either --script or --tape",
                                                     words.script ? "both" : "neither");
    if (words.concurrency > SRV_SLOTS_MAX)
        return err_set(e, ERR_ARG, "--concurrency: found %lld, wanted 1 to %d", (long long)words.concurrency,
                       SRV_SLOTS_MAX);
    srv_drive_setup s = { .address = &address, .key_file = words.key, .client = words.client,
                          .checkpoint = words.checkpoint, .arm = words.arm, .positions = 1, .repeat = (int32_t)words.repeat,
                          .timeout_ns = (uint64_t)words.timeout * 1000000000u,
                          .awake_ns = (uint64_t)words.awake * 1000u };
    TRY(parse_rate(words.rate, &s.rate, e));
    if (words.faults) TRY(srv_faults_parse(words.faults, &s.faults, e));
    TRY(srv_address_parse(args.item[0], false, &address, e));
    err_code rc = drive(args.item[0], &words, &s, common.json, &same, e);
    *exit_status = same ? 0 : 1;
    return rc;
}

const cli_command CMD_DRIVE = {
    "drive", "ADDR", "plays a script's or a tape's traffic to a worker, and checks what it answers", OPTIONS,
    sizeof OPTIONS / sizeof OPTIONS[0], run,
};
