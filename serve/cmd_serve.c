#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "capture/redact.h"
#include "capture/round_list.h"
#include "engine/footprint.h"
#include "engine/identity.h"
#include "serve/commands.h"
#include "serve/dumper.h"
#include "serve/early.h"
#include "serve/server.h"

enum { POSITIONS_MAX = 1 << 24 /* the last position that fp32 counts exactly */ };

typedef struct serve_words {
    eng_option_words run;
    const char *listen, *tls_key, *prewarm, *frame_timeout;
    int64_t slots, positions;
    const char *dump_dir, *dump_rounds, *dump_level, *dump_redact, *on_mismatch;
    int64_t dump_size, dump_flight;
    cli_list dump_when;
} serve_words;

static const cli_option OPTIONS[] = {
    { "--arm", "ARM", "see sparktape arms (default: DSPARK_WORKER_ARM, or native-packed)", CLI_STR,
      offsetof(serve_words, run.arm) },
    { "--backend", "NAME", "cpu (default) or cuda", CLI_STR, offsetof(serve_words, run.backend) },
    { "--tp", "N", "ranks (default: 1)", CLI_COUNT, offsetof(serve_words, run.tp) },
    { "--comm", "KIND", "cuda: nccl (a card a rank, default) or emulated (all on one)", CLI_STR,
      offsetof(serve_words, run.comm) },
    { "--mode", "MODE", "graph (default) or eager", CLI_STR, offsetof(serve_words, run.mode) },
    { "--acc", "ACC", "blocked or f64 (default: the arm's)", CLI_STR, offsetof(serve_words, run.acc) },
    { "--combine", "MODE", "exact (default) or fused", CLI_STR, offsetof(serve_words, run.combine) },
    { "--head", "HEAD", "official (default) or k6", CLI_STR, offsetof(serve_words, run.head) },
    { "--listen", "ADDRESS", "unix:PATH or tcp:HOST:PORT (default: sparktape.sock in XDG_RUNTIME_DIR, or here)", CLI_STR,
      offsetof(serve_words, listen) },
    { "--tls-key", "FILE", "TLS 1.3 with this pre-shared key; needed off loopback", CLI_IN,
      offsetof(serve_words, tls_key) },
    { "--slots", "N", "requests at a time, 1 to 4 (default: 4)", CLI_COUNT, offsetof(serve_words, slots) },
    { "--positions", "N", "longest request (default: 327680)", CLI_COUNT, offsetof(serve_words, positions) },
    { "--prewarm", "on|off", "run every shape of step before the first request (default: SPARKTAPE_PREWARM, or on)",
      CLI_STR, offsetof(serve_words, prewarm) },
    { "--frame-timeout", "SECONDS", "for a frame that has begun to be whole (default: 10)", CLI_STR,
      offsetof(serve_words, frame_timeout) },
    { "--dump-dir", "DIR", "write V1 dumps of chosen rounds there (default: DSPARK_V1_DUMP_DIR, or none)", CLI_STR,
      offsetof(serve_words, dump_dir) },
    { "--dump-rounds", "LIST", "which rounds: 7,100-120,every:50,p:0.01@9 (default: DSPARK_V1_ROUNDS)", CLI_STR,
      offsetof(serve_words, dump_rounds) },
    { "--dump-when", "CONDITION", "of these keep those on which it holds (see record --when), and every mismatch; may be "
      "repeated", CLI_MULTI, offsetof(serve_words, dump_when) },
    { "--dump-flight", "N", "and the N chosen rounds before, from memory; SIGUSR1 asks for them too", CLI_COUNT,
      offsetof(serve_words, dump_flight) },
    { "--dump-redact", "KEYFILE", "replace token ids in dumps by a permutation that only this key tells; made where there "
      "is none", CLI_IN, offsetof(serve_words, dump_redact) },
    { "--dump-level", "LEVEL", "which values of a round are dumped: v1, as record --level v1 (the only one)", CLI_STR,
      offsetof(serve_words, dump_level) },
    { "--dump-size", "MIB", "begin another tape when one is so long (default: 1024)", CLI_COUNT,
      offsetof(serve_words, dump_size) },
    { "--on-mismatch", "WHAT", "when a dumped round and its eager run differ: count (default) or poison", CLI_STR,
      offsetof(serve_words, on_mismatch) },
};

/* What the words mean, checked before anything is loaded. */
typedef struct plan {
    eng_options run;
    srv_address address;
    uint64_t frame_timeout_ns;
    bool prewarm, dumps, poison;
    cap_round_list rounds;
} plan;

static const char *from_env(const char *word, const char *name)
{
    const char *v = getenv(name);
    return word || !v || !*v ? word : v;
}

static err_code parse_choice(const char *option, const char *word, const char *yes, const char *no, bool *out, err *e)
{
    *out = strcmp(word, yes) == 0;
    if (*out || strcmp(word, no) == 0) return ERR_OK;
    return err_set(e, ERR_ARG, "%s: found '%.40s', wanted %s or %s", option, word, yes, no);
}

enum { FLIGHT_MAX = 65536 };

static err_code parse_dump(const serve_words *words, plan *p, err *e)
{
    const struct { const char *name; bool given; } of_dumps[] = {
        { "--dump-when", words->dump_when.count > 0 }, { "--dump-flight", words->dump_flight > 0 },
        { "--dump-redact", words->dump_redact != NULL },
    };
    p->dumps = words->dump_dir != NULL;
    for (size_t i = 0; i < COUNT_OF(of_dumps); i++)
        if (of_dumps[i].given && !p->dumps)
            return err_set(e, ERR_ARG, "%s: found no --dump-dir (DSPARK_V1_DUMP_DIR), wanted a folder to write to",
                           of_dumps[i].name);
    if (words->dump_flight > FLIGHT_MAX)
        return err_set(e, ERR_ARG, "--dump-flight: found %lld, wanted at most %d", (long long)words->dump_flight,
                       FLIGHT_MAX);
    TRY(cap_when_check(&words->dump_when, NULL, e));
    TRY(parse_choice("--on-mismatch", words->on_mismatch, "poison", "count", &p->poison, e));
    if (words->dump_rounds) TRY(cap_round_list_parse(words->dump_rounds, "--dump-rounds", &p->rounds, e));
    if (words->dump_rounds && !p->dumps)
        return err_set(e, ERR_ARG, "--dump-rounds (DSPARK_V1_ROUNDS): found no --dump-dir (DSPARK_V1_DUMP_DIR), wanted "
                                   "a folder to write to");
    if (p->dumps && !words->dump_rounds)
        return err_set(e, ERR_ARG, "--dump-dir (DSPARK_V1_DUMP_DIR): found no --dump-rounds (DSPARK_V1_ROUNDS), wanted "
                                   "which rounds, or all");
    if (strcmp(words->dump_level, "v1") != 0)
        return err_set(e, ERR_ARG, "--dump-level: found '%.40s', wanted v1", words->dump_level);
    return ERR_OK;
}

static err_code parse_listen(const serve_words *words, plan *p, err *e)
{
    char text[sizeof p->address.text];
    const char *dir = getenv("XDG_RUNTIME_DIR");
    int n = words->listen ? snprintf(text, sizeof text, "%s", words->listen)
                          : snprintf(text, sizeof text, "unix:%s/sparktape.sock", dir && *dir ? dir : ".");
    if (n < 0 || (size_t)n >= sizeof text)
        return err_set(e, ERR_ARG, "--listen: found %d characters, wanted fewer than %zu", n, sizeof text);
    TRY(srv_address_parse(text, true, &p->address, e));
    if (p->address.unix_socket || p->address.loopback || words->tls_key) return ERR_OK;
    return err_set(e, ERR_ARG, "--listen %s: not a loopback address, wanted --tls-key FILE with it", p->address.text);
}

static err_code parse_words(const serve_words *words, int64_t threads, plan *p, err *e)
{
    char *end;
    double seconds = strtod(words->frame_timeout, &end);
    *p = (plan){ 0 };
    err_code rc = eng_options_parse(&words->run, threads, &p->run, e);
    if (rc != ERR_OK) {
        cli_say_as(e, "--arm", "--arm (DSPARK_WORKER_ARM)");
        return rc;
    }
    TRY(parse_listen(words, p, e));
    TRY(parse_choice("--prewarm (SPARKTAPE_PREWARM)", words->prewarm ? words->prewarm : "on", "on", "off", &p->prewarm, e));
    if (words->slots > SRV_SLOTS_MAX)
        return err_set(e, ERR_ARG, "--slots: found %lld, wanted 1 to %d", (long long)words->slots, SRV_SLOTS_MAX);
    if (words->positions > POSITIONS_MAX)
        return err_set(e, ERR_ARG, "--positions: found %lld, wanted 1 to %d", (long long)words->positions, POSITIONS_MAX);
    if (*end || end == words->frame_timeout || !(seconds >= 0.01 && seconds <= 3600))
        return err_set(e, ERR_ARG, "--frame-timeout: found '%.32s', wanted 0.01 to 3600 seconds", words->frame_timeout);
    p->frame_timeout_ns = (uint64_t)llround(seconds * 1e9);
    return parse_dump(words, p, e);
}

/* Everything that a worker is made of. */
typedef struct serving {
    srv_key *key;
    srv_server *server;
    eng_weights *weights;
    eng_engine *engine;
    cap_redact *redact;
    srv_dumper *dumper;
    srv_worker *worker;
    json_t *about;
} serving;

/* What the memory accounting says of all ranks together: { part: bytes, ..., "total": bytes }. */
static err_code planned_memory(const serving *s, const serve_words *words, const plan *p, json_t **out, err *e)
{
    eng_footprint_for f = { .n_ranks = p->run.n_ranks, .positions = words->positions, .slots = (int32_t)words->slots,
                            .head_exl3 = words->run.head && strcmp(words->run.head, "k6") == 0 };
    uint64_t bytes[ENG_FOOT_COUNT] = { 0 }, total = 0;
    for (int32_t r = 0; r < p->run.n_ranks; r++) {
        eng_footprint one;
        TRY(eng_footprint_of(eng_weights_config(s->weights), p->run.arm, &f, r, &one, e));
        for (int i = 0; i < ENG_FOOT_COUNT; i++) bytes[i] += one.bytes[i];
        total += one.total_bytes;
    }
    json_t *j = json_object();
    bool whole = j != NULL;
    for (int i = 0; whole && i < ENG_FOOT_COUNT; i++)
        whole = json_object_set_new(j, eng_foot_name((eng_foot)i), json_integer((json_int_t)bytes[i])) == 0;
    whole = whole && json_object_set_new(j, "total", json_integer((json_int_t)total)) == 0;
    if (!whole) {
        json_decref(j);
        return err_set(e, ERR_NOMEM, "no memory for the memory accounting");
    }
    *out = j;
    return ERR_OK;
}

static err_code open_server(serving *s, const serve_words *words, const plan *p, err *e)
{
    int fd;
    srv_address bound;
    if (words->tls_key) TRY(srv_key_open(words->tls_key, true, &s->key, e));
    srv_early_hold();
    err_code listening = srv_listen(&p->address, &fd, &bound, e);
    if (listening == ERR_OK && bound.unix_socket) srv_early_file(srv_address_path(&bound));
    srv_early_release();
    TRY(listening);
    srv_server_setup setup = { .fd = fd, .address = &bound, .key = s->key, .frame_timeout_ns = p->frame_timeout_ns,
                               .signals = true };
    err_code rc = srv_server_open(&setup, &s->server, e);
    if (rc != ERR_OK) srv_address_remove(&bound);
    return rc;
}

static atomic_bool asked; /* by SIGUSR1 */

static void on_usr1(int number)
{
    (void)number;
    atomic_store(&asked, true);
}

static err_code open_dumper(serving *s, const serve_words *words, const plan *p, err *e)
{
    srv_dumper_setup d = { .engine = s->engine, .identity = json_object_get(s->about, "identity"), .dir = words->dump_dir,
                           .rounds_text = words->dump_rounds, .rounds = p->rounds,
                           .rotate_bytes = (uint64_t)words->dump_size << 20, .slots = (int32_t)words->slots,
                           .positions = words->positions, .poison = p->poison, .when = &words->dump_when,
                           .flight = (int32_t)words->dump_flight };
    char tape[256], part[sizeof tape + sizeof ".part"];
    if (words->dump_redact)
        TRY(cap_redact_open(words->dump_redact, true, eng_weights_config(s->weights)->vocab, &s->redact, e));
    d.redact = s->redact;
    if (words->dump_flight) {
        struct sigaction act = { .sa_handler = on_usr1, .sa_flags = SA_RESTART };
        if (sigaction(SIGUSR1, &act, NULL) != 0) return err_set(e, ERR_SYSTEM, "--dump-flight: cannot wait for SIGUSR1");
        d.asked = &asked;
    }
    srv_early_hold();
    err_code rc = srv_dumper_open(&d, &s->dumper, e);
    if (rc == ERR_OK) {
        srv_dumper_tape(s->dumper, tape);
        snprintf(part, sizeof part, "%s.part", tape);
        if (tape[0]) srv_early_file(part);
    }
    srv_early_release();
    return rc;
}

static err_code open_worker(serving *s, const char *model, const serve_words *words, const plan *p, bool quiet, err *e)
{
    char checkpoint[FMT_SHA256_HEX];
    json_t *planned = NULL;
    TRY(eng_weights_open(model, quiet, &s->weights, e));
    if (eng_weights_need(s->weights, &p->run.reps, e) != ERR_OK) return err_wrap(e, "arm %s", p->run.arm->name);
    eng_weights_identity(s->weights, checkpoint);
    TRY(planned_memory(s, words, p, &planned, e));
    s->about = json_pack("{s:o, s:o}", "identity", eng_identity(s->weights, &p->run), "planned_bytes", planned);
    if (!s->about) return err_set(e, ERR_NOMEM, "no memory for the identity");
    eng_level retain = p->dumps ? ENG_LEVEL_V1 : ENG_LEVEL_IO;
    srv_dump dump;
    eng_options run = p->run;
    run.lazy = true; /* prewarm captures what these slots can ask for; without it the first to ask waits */
    TRY(eng_open(s->weights, &run, (int32_t)words->slots + 1, retain, quiet, &s->engine, e));
    if (p->dumps) {
        TRY(open_dumper(s, words, p, e));
        srv_dumper_hooks(s->dumper, &dump);
    }
    srv_worker_setup setup = { .engine = s->engine, .checkpoint = checkpoint, .about = s->about,
                               .slots = (int32_t)words->slots, .positions = words->positions, .prewarm = p->prewarm,
                               .dump = p->dumps ? &dump : NULL, .wake = srv_server_wake, .ctx = s->server };
    return srv_worker_open(&setup, &s->worker, e);
}

static err_code say_ready(const serving *s, const serve_words *words, const plan *p, bool json, err *e)
{
    const char *address = srv_server_address(s->server), *arm = p->run.arm->name;
    double ms = srv_worker_prewarm_ms(s->worker);
    err_code rc = ERR_OK;
    if (json) {
        json_t *j = json_pack("{s:i, s:s, s:s, s:s, s:i, s:I, s:b, s:f, s:i}", "schema", 1, "ready", address, "arm", arm,
                              "backend", eng_backend_name(p->run.backend), "slots", (int)words->slots, "positions",
                              (json_int_t)words->positions, "prewarm", (int)p->prewarm, "prewarm_ms", ms, "pid",
                              (int)getpid());
        rc = j ? fmt_json_print(stdout, j, e) : err_set(e, ERR_NOMEM, "no memory for the report");
        json_decref(j);
    } else {
        printf("ready %s arm %s slots %lld positions %lld prewarm %s", address, arm, (long long)words->slots,
               (long long)words->positions, p->prewarm ? "on" : "off\n");
        if (p->prewarm) printf(" %.1f ms\n", ms);
    }
    if (rc == ERR_OK && fflush(stdout) != 0) rc = err_set(e, ERR_IO, "standard output cannot be written");
    return rc;
}

static err_code serve(serving *s, const char *model, const serve_words *words, const plan *p,
                      const cli_common *common, err *e)
{
    signal(SIGPIPE, SIG_IGN); /* a client that is gone is an error of its connection */
    srv_early_begin();
    TRY(open_server(s, words, p, e));
    TRY(open_worker(s, model, words, p, common->quiet, e));
    TRY(srv_server_start(s->server, s->worker, e));
    TRY(say_ready(s, words, p, common->json, e));
    return srv_server_run(s->server, s->worker, e);
}

/* ERR: the dumps were not written to their end. */
static err_code serving_fini(serving *s, err *e)
{
    srv_worker_close(s->worker); /* before the server, which it wakes */
    srv_server_close(s->server);
    srv_key_close(s->key);
    err_code rc = srv_dumper_close(s->dumper, e);
    cap_redact_close(s->redact);
    eng_close(s->engine);
    eng_weights_close(s->weights);
    json_decref(s->about);
    return rc;
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    serve_words words = { .run = { .mode = "graph" }, .frame_timeout = "10", .slots = SRV_SLOTS_MAX,
                          .positions = 327680, .dump_level = "v1", .on_mismatch = "count", .dump_size = 1024 };
    cli_common common;
    cli_args args;
    plan p;
    *exit_status = 0;
    TRY(cli_parse(self, argc, argv, &words, &common, &args, e));
    if (common.help) {
        cli_help(self);
        return ERR_OK;
    }
    words.run.arm = from_env(words.run.arm, "DSPARK_WORKER_ARM");
    words.prewarm = from_env(words.prewarm, "SPARKTAPE_PREWARM");
    words.dump_dir = from_env(words.dump_dir, "DSPARK_V1_DUMP_DIR");
    words.dump_rounds = from_env(words.dump_rounds, "DSPARK_V1_ROUNDS");
    if (!words.dump_rounds && (words.dump_when.count || words.dump_flight)) words.dump_rounds = "all";
    TRY(parse_words(&words, common.threads, &p, e));
    serving s = { 0 };
    err_code rc = serve(&s, args.item[0], &words, &p, &common, e);
    err_code dumped = serving_fini(&s, rc == ERR_OK ? e : NULL);
    return rc == ERR_OK ? dumped : rc;
}

const cli_command CMD_SERVE = { "serve", "MODEL", "answers drafts to target engines over a socket", OPTIONS,
                                sizeof OPTIONS / sizeof OPTIONS[0], run };
