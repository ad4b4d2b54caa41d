#include "serve/stats.h"

#include <unistd.h>

/* Adds value under key; a missing value (no memory) loses the whole object. */
static json_t *with(json_t *object, const char *key, json_t *value)
{
    if (object && json_object_set_new(object, key, value) == 0) return object; /* takes value also when it fails */
    if (!object) json_decref(value);
    json_decref(object);
    return NULL;
}

json_t *srv_stats_json(const srv_stats *s)
{
    json_t *done = json_object(), *refused = json_object(), *steps = json_array(), *latency = json_object();
    for (int op = 0; op < SRV_OP_COUNT; op++)
        done = with(done, srv_op_name((srv_op)op), json_integer((json_int_t)s->done[op]));
    for (int r = SRV_REFUSED_NONE + 1; r < SRV_REFUSAL_COUNT; r++)
        refused = with(refused, srv_refusal_name((srv_refusal)r), json_integer((json_int_t)s->refused[r]));
    uint64_t all = 0;
    for (int b = 1; b <= ENG_BATCH_MAX; b++) {
        all += s->steps[b];
        if (steps && json_array_append_new(steps, json_integer((json_int_t)s->steps[b])) != 0) {
            json_decref(steps);
            steps = NULL;
        }
    }
    latency = with(latency, "queue", srv_histogram_json(&s->queue));
    latency = with(latency, "insert", srv_histogram_json(&s->insert));
    latency = with(latency, "step", srv_histogram_json(&s->step));
    latency = with(latency, "reply", srv_histogram_json(&s->reply));
    json_t *j = json_pack("{s:I, s:I, s:I, s:f, s:f}", "rounds", (json_int_t)all, "rows", (json_int_t)s->rows, "abandoned",
                          (json_int_t)s->abandoned, "first_insert_us", (double)s->first_insert_ns * 1e-3, "first_step_us",
                          (double)s->first_step_ns * 1e-3);
    j = with(j, "steps_by_slots", steps);
    j = with(j, "done", done);
    j = with(j, "refused", refused);
    return with(j, "latency", latency);
}

uint64_t srv_resident_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    unsigned long long all = 0, resident = 0;
    if (!f) return 0;
    if (fscanf(f, "%llu %llu", &all, &resident) != 2) resident = 0;
    fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}
