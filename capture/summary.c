#include "capture/summary.h"

#include "base/mem.h"

static json_t *taps_json(const cap_plan *plan)
{
    json_int_t n_armed = 0, n_fired = 0;
    json_t *never = json_array();
    for (int s = 0; s < CAP_STEPS; s++)
        for (int32_t v = 0; v < plan->program[s]->n_values; v++) {
            if (!cap_is_armed(&plan->armed[s][v])) continue;
            n_armed++;
            if (plan->armed[s][v].fired) n_fired++;
            else json_array_append_new(never, json_string(plan->program[s]->value[v].name));
        }
    return json_pack("{s:I, s:I, s:o}", "armed", n_armed, "fired", n_fired, "never", never);
}

static double us_per(uint64_t ns, double n) { return n > 0 ? (double)ns / 1000.0 / n : 0; }

json_t *cap_summary_json(const cap_summary *of)
{
#define SINCE(counter) (of->total->counter - of->base->counter)
#define SPENT(counter) (of->spent->counter - of->spent_base->counter)
    const struct { const char *key; uint64_t n; } counts[] = {
        { "rounds", SINCE(rounds) }, { "inserts", SINCE(inserts) }, { "drafts", SINCE(drafts) }, { "slots", of->n_slots },
        { "values", SINCE(values) }, { "raw_bytes", SINCE(raw_bytes) }, { "dropped", SINCE(dropped) },
        { "device_shots", SPENT(device_shots) }, { "events_lost", of->n_lost },
        { "waits", SPENT(waits) }, { "wait_us", SPENT(wait_ns) / 1000 },
        { "padded_rows", 0 /* a shot holds live rows only */ },
        { "rounds_seen", SPENT(rounds_seen) }, { "rounds_wanted", SPENT(rounds_wanted) },
    };
    uint64_t n_rounds = of->judged ? of->judged->rounds : SINCE(rounds);
    uint64_t n_tapped = of->judged ? of->judged->tapped : SINCE(tapped);
    const struct { const char *key; double us; } costs[] = {
        { "cost_us_per_round", us_per(SPENT(host_ns), (double)n_rounds) },
        { "cost_us_per_tap", us_per(SPENT(host_ns), (double)n_tapped) },
        { "cost_us_per_kb", us_per(SPENT(host_ns), (double)SPENT(shot_bytes) / 1000.0) },
        { "device_us", us_per(SPENT(device_ns), 1) },
    };
#undef SINCE
#undef SPENT
    json_t *s = json_object();
    int rc = json_object_set_new(s, "taps", taps_json(of->plan));
    size_t n_counts = COUNT_OF(counts) - (of->rounds_listed ? 0 : 2); /* the list's two come last */
    for (size_t i = 0; i < n_counts; i++)
        rc |= json_object_set_new(s, counts[i].key, json_integer((json_int_t)counts[i].n));
    for (size_t i = 0; i < COUNT_OF(costs); i++) rc |= json_object_set_new(s, costs[i].key, json_real(costs[i].us));
    if (of->failed) rc |= json_object_set_new(s, "failed", json_string(of->failed));
    if (rc == 0) return s;
    json_decref(s);
    return NULL;
}
