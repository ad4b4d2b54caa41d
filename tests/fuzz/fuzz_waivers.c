/* Any bytes as a file of waivers and as one of gates: refused with one line, or limits that can be applied. */
#include "replay/gates.h"
#include "replay/waiver.h"

#include <math.h>
#include <string.h>

#include "memfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_refusal(err_code rc, const err *e)
{
    CHECK((rc == ERR_FORMAT || rc == ERR_INPUT) && e->msg[0] && !strchr(e->msg, '\n'));
}

static void apply(rpl_waivers *w)
{
    rpl_issue issue[] = {
        { .value = "s0.attn_out", .op = "s0.attn", .cause = "order noise: 3 of 3", .ratio = 40.5, .n = 3, .waiver = -1 },
        { .value = "a,b", .cause = "", .ratio = NAN, .n = INT64_MAX, .waiver = -1 },
        { .value = "a", .cause = "x", .ratio = INFINITY, .n = 1, .waiver = -1 },
    };
    enum { N = sizeof issue / sizeof issue[0] };
    const rpl_result result = { .analysis = rpl_analysis_find("certificate"), .json = json_object() };
    rpl_waivers_apply(w, issue, N, &result, "2026-06-01");
    for (int i = 0; i < N; i++) {
        if (issue[i].waiver < 0) continue;
        const rpl_waiver *x = &w->item[issue[i].waiver];
        CHECK(strcmp(x->expires, "2026-06-01") >= 0 && !issue[i].refused[sizeof issue[i].refused - 1]);
        CHECK(isnan(x->max_ratio) || isnan(issue[i].ratio) || issue[i].ratio <= x->max_ratio);
        CHECK(x->max_count < 0 || issue[i].n <= x->max_count);
    }
    json_decref(result.json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[MEMFILE_PATH];
    rpl_waivers w;
    rpl_gates g;
    err e = { 0 };
    int fd = memfile(data, size, path);
    err_code rc = rpl_waivers_read(path, &w, &e);
    if (rc != ERR_OK) check_refusal(rc, &e);
    for (size_t i = 0; rc == ERR_OK && i < w.n; i++)
        CHECK(strlen(w.item[i].expires) == 10 && (w.item[i].max_ratio >= 0 || w.item[i].max_count >= 0));
    if (rc == ERR_OK) apply(&w);
    rpl_waivers_fini(&w);
    rc = rpl_gates_read(path, &g, &e);
    if (rc != ERR_OK) check_refusal(rc, &e);
    for (int i = 0; rc == ERR_OK && i < RPL_GATE_COUNT; i++) CHECK(g.limit[i] >= 0);
    close(fd);
    return 0;
}
