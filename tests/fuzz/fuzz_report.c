/* Any bytes as a file of results: refused with one line, or a report that can be written in every form, and whose own JSON
 * is a report that says the same. */
#include "replay/report.h"

#include <string.h>

#include "memfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What it writes as JSON, malloc'd. NULL: it was refused. */
static char *report(const char *path)
{
    rpl_report r = { 0 };
    err e = { 0 };
    char *json = NULL, *other = NULL;
    size_t bytes;
    err_code rc = rpl_report_read(&r, path, &e);
    if (rc == ERR_OK) rc = rpl_report_finish(&r, NULL, "2026-06-01", &e);
    if (rc == ERR_OK) {
        FILE *out = open_memstream(&json, &bytes);
        CHECK(out && rpl_report_json(&r, out, &e) == ERR_OK && fclose(out) == 0);
        out = open_memstream(&other, &bytes);
        CHECK(out);
        rpl_report_text(&r, true, false, out);
        rpl_report_junit(&r, out);
        rpl_report_html(&r, out);
        fclose(out);
        free(other);
        CHECK(rpl_report_exit(&r) == 0 || rpl_report_exit(&r) == 1);
    } else {
        CHECK((rc == ERR_FORMAT || rc == ERR_INPUT) && e.msg[0] && !strchr(e.msg, '\n'));
    }
    rpl_report_fini(&r);
    return json;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[MEMFILE_PATH];
    int fd = memfile(data, size, path);
    char *json = report(path);
    close(fd);
    if (!json) return 0;
    fd = memfile((const uint8_t *)json, strlen(json), path);
    char *again = report(path);
    CHECK(again && strcmp(json, again) == 0);
    close(fd);
    free(again);
    free(json);
    return 0;
}
