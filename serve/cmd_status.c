#include <string.h>

#include "base/mem.h"
#include "serve/client.h"
#include "serve/commands.h"

#define TIMEOUT_NS 10000000000ull

typedef struct status_words { const char *tls_key; } status_words;

static const cli_option OPTIONS[] = {
    { "--tls-key", "FILE", "the pre-shared key of the worker", CLI_IN, offsetof(status_words, tls_key) },
};

static err_code ask(const char *address, const char *key, srv_reply *reply, err *e)
{
    srv_address a;
    srv_client *c;
    srv_request r = { .op = SRV_STATUS };
    TRY(srv_address_parse(address, false, &a, e));
    TRY(srv_client_open(&a, key, TIMEOUT_NS, &c, e));
    err_code rc = srv_client_call(c, &r, reply, e);
    srv_client_close(c);
    if (rc == ERR_OK && reply->refused != SRV_REFUSED_NONE)
        rc = err_set(e, ERR_INPUT, "%s: refused, %s: %s", address, srv_refusal_name(reply->refused), reply->text);
    return rc;
}

/* A key's text or number; "" and 0 where the worker, of another version, does not tell. */
static const char *text(const json_t *j, const char *key)
{
    const char *t = json_string_value(json_object_get(j, key));
    return t ? t : "";
}

static double number(const json_t *j, const char *key) { return json_number_value(json_object_get(j, key)); }

static void print_slots(const json_t *status)
{
    const json_t *slots = json_object_get(status, "slot");
    for (size_t i = 0; i < json_array_size(slots); i++) {
        const json_t *s = json_array_get(slots, i);
        printf("  slot %-6.0f %s", number(s, "slot"), text(s, "state"));
        if (json_object_get(s, "client"))
            printf(", client %s, epoch %.0f, request %.0f, last position %.0f", text(s, "client"), number(s, "epoch"),
                   number(s, "request"), number(s, "last"));
        printf("%s%s\n", text(s, "reason")[0] ? ": " : "", text(s, "reason"));
    }
}

/* "poisoned 1, slot 2": what is not 0 of an object of counts. */
static void print_counts(const char *what, const json_t *counts)
{
    const char *key;
    json_t *value;
    bool any = false;
    printf("%-13s", what);
    json_object_foreach((json_t *)(uintptr_t)counts, key, value) {
        if (json_number_value(value) == 0) continue;
        printf("%s%s %.0f", any ? ", " : "", key, json_number_value(value));
        any = true;
    }
    printf("%s\n", any ? "" : "none");
}

static void print_latency(const json_t *latency)
{
    const char *key;
    json_t *h;
    printf("%-13s %9s %9s %9s %9s %9s %9s\n", "times in us", "count", "p50", "p90", "p99", "p99.9", "max");
    json_object_foreach((json_t *)(uintptr_t)latency, key, h)
        printf("  %-11s %9.0f %9.1f %9.1f %9.1f %9.1f %9.1f\n", key, number(h, "count"), number(h, "p50_us"),
               number(h, "p90_us"), number(h, "p99_us"), number(h, "p999_us"), number(h, "max_us"));
}

static void print_status(const json_t *s)
{
    const json_t *counts = json_object_get(s, "counts"), *memory = json_object_get(s, "memory");
    const json_t *warm = json_object_get(s, "prewarm"), *steps = json_object_get(counts, "steps_by_slots");
    const json_t *planned = json_object_get(json_object_get(s, "about"), "planned_bytes");
    const char *reason = text(s, "reason");
    printf("%s: %s%s%s, arm %s, pid %.0f, up %.1f s\n", text(s, "address"), text(s, "state"), reason[0] ? ": " : "", reason,
           text(s, "arm"), number(s, "pid"), number(s, "uptime_s"));
    printf("%-13s%s\n", "checkpoint", text(s, "checkpoint"));
    printf("%-13s%.0f, %.0f not reserved, %.0f positions\n", "slots", number(s, "slots"), number(s, "slots_unreserved"),
           number(s, "positions"));
    print_slots(s);
    printf("%-13s%.0f of 1, 2, 3, 4 slots:", "rounds", number(counts, "rounds"));
    for (size_t b = 0; b < json_array_size(steps); b++) printf(" %.0f", json_number_value(json_array_get(steps, b)));
    printf("; %.0f rows inserted, %.0f requests queued, busy for %.0f us\n", number(counts, "rows"), number(s, "queued"),
           number(s, "busy_us"));
    print_counts("done", json_object_get(counts, "done"));
    print_counts("refused", json_object_get(counts, "refused"));
    print_counts("connections", json_object_get(s, "connections"));
    print_latency(json_object_get(counts, "latency"));
    if (json_is_true(json_object_get(warm, "on"))) printf("%-13son, %.1f ms", "prewarm", number(warm, "ms"));
    else printf("%-13soff", "prewarm");
    printf("; the first insert took %.0f us, the first step %.0f us\n", number(counts, "first_insert_us"),
           number(counts, "first_step_us"));
    printf("%-13splanned %.1f MiB, engine %.1f MiB beside the mapped files, resident %.1f MiB\n", "memory",
           number(planned, "total") / 0x1p20, number(memory, "engine_bytes") / 0x1p20,
           number(memory, "resident_bytes") / 0x1p20);
    const json_t *dump = json_object_get(s, "dump");
    if (json_is_object(dump)) {
        const char *failed = json_string_value(json_object_get(dump, "failed"));
        print_counts("dumps", dump);
        if (failed && *failed) printf("%-13sFAILED, nothing is dumped any more: %s\n", "", failed);
    } else printf("%-13snone\n", "dumps");
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    status_words words = { 0 };
    cli_common common;
    cli_args args;
    srv_reply reply = { 0 };
    *exit_status = 0;
    TRY(cli_parse(self, argc, argv, &words, &common, &args, e));
    if (common.help) {
        cli_help(self);
        return ERR_OK;
    }
    TRY(ask(args.item[0], words.tls_key, &reply, e));
    err_code rc = ERR_OK;
    if (common.json) rc = fmt_json_print(stdout, reply.u.status, e);
    else print_status(reply.u.status);
    srv_reply_fini(&reply);
    return rc;
}

const cli_command CMD_STATUS = { "status", "ADDRESS", "what a worker is doing", OPTIONS,
                                 sizeof OPTIONS / sizeof OPTIONS[0], run };
