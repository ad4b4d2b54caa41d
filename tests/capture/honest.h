/* A tape's summary against what the tape holds. */
#ifndef TESTS_CAPTURE_HONEST_H
#define TESTS_CAPTURE_HONEST_H

#include "recorder_help.h"

#include "capture/joined.h"

typedef struct tape_facts {
    json_int_t rounds, inserts, drafts, slots, values, raw_bytes, dropped, fired;
} tape_facts;

static inline bool is_input(const char *name)
{
    return strcmp(name, "taps") == 0 || strcmp(name, "pos") == 0 || strncmp(name, "draft.", 6) == 0;
}

/* The tap that made a record: "head.logits.top_ids" is head.logits'. */
static inline void tap_of(const char *name, char out[FMT_TAPE_NAME_BYTES + 1])
{
    snprintf(out, FMT_TAPE_NAME_BYTES + 1, "%s", name);
    char *top = strstr(out, ".top");
    if (top) *top = 0;
}

/* Counted from the records alone. */
static inline tape_facts facts_of(const fmt_tape *t)
{
    tape_facts f = { 0 };
    const int32_t *rounds;
    cap_names *names;
    static char seen[256][FMT_TAPE_NAME_BYTES + 1];
    int32_t slots[64];
    f.rounds = (json_int_t)fmt_tape_rounds(t, &rounds);
    OK(cap_names_make(t, &names, e));
    f.values = (json_int_t)cap_names_count(names);
    for (size_t i = 0; i < cap_names_count(names); i++) {
        const cap_name *n = cap_names_at(names, i);
        f.inserts += strcmp(n->name, "pos") == 0;
        f.drafts += strcmp(n->name, "draft.n_out") == 0;
        json_int_t k = 0;
        if (strcmp(n->name, "pos") == 0) {
            while (k < f.slots && slots[k] != n->slot) k++;
            if (k == f.slots) slots[f.slots++] = n->slot;
        }
        if (is_input(n->name)) continue;
        char tap[FMT_TAPE_NAME_BYTES + 1];
        tap_of(n->name, tap);
        for (k = 0; k < f.fired && strcmp(seen[k], tap) != 0; k++) continue;
        if (k == f.fired) memcpy(seen[f.fired++], tap, sizeof tap);
    }
    cap_names_free(names);
    for (size_t i = 0; i < fmt_tape_count(t); i++) {
        fmt_tape_record r;
        fmt_tape_at(t, i, &r);
        f.raw_bytes += (json_int_t)fmt_tensor_bytes(&r.tensor);
    }
    for (size_t i = 0; i < fmt_tape_event_count(t); i++) {
        int32_t round;
        const json_t *event = fmt_tape_event_at(t, i, &round);
        if (strcmp(json_string_value(json_object_get(event, "event")), "dropped") != 0) continue;
        assert_int_equal(json_integer_value(json_object_get(event, "round")), round);
        assert_false(has_round(t, round));
        f.dropped++;
    }
    return f;
}

/* NULL, or the first counter of the summary that is not what the tape has. */
static const char *dishonest(const fmt_tape *t, const json_t *summary)
{
    const tape_facts f = facts_of(t);
    const json_t *taps = json_object_get(summary, "taps");
    json_int_t never = (json_int_t)json_array_size(json_object_get(taps, "never"));
    const struct { const json_t *of; const char *key; json_int_t wanted; } COUNTS[] = {
        { summary, "rounds", f.rounds }, { summary, "inserts", f.inserts }, { summary, "drafts", f.drafts },
        { summary, "slots", f.slots }, { summary, "values", f.values }, { summary, "raw_bytes", f.raw_bytes },
        { summary, "dropped", f.dropped }, { summary, "padded_rows", 0 }, { summary, "events_lost", 0 },
        { taps, "fired", f.fired }, { taps, "armed", f.fired + never },
    };
    for (size_t i = 0; i < COUNT_OF(COUNTS); i++) {
        const json_t *n = json_object_get(COUNTS[i].of, COUNTS[i].key);
        if (!json_is_integer(n) || json_integer_value(n) != COUNTS[i].wanted) return COUNTS[i].key;
    }
    return NULL;
}

static inline void assert_honest(const fmt_tape *t)
{
    const char *key = dishonest(t, fmt_tape_summary(t));
    if (key) fail_msg("%s: %s is %lld", fmt_tape_path(t), key, (long long)number(t, key));
}

#endif
