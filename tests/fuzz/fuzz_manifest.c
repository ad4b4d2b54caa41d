/* Any bytes as a manifest, or as a receipt of sha256sum (the first byte chooses), of a small checkpoint: refused with one
 * line, or compared. Nothing but files of the checkpoint's folder is read for it. */
#include "engine/manifest.h"
#include "engine/synth.h"

#include <string.h>

#include "memfile.h"
#include "workplace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static eng_weights *weights;
static eng_scan scan;

static void set_up(void)
{
    eng_config c;
    eng_synth_report r;
    err e = { 0 };
    workplace_enter();
    CHECK(eng_config_preset("tiny", &c) && eng_synth_checkpoint("m", &c, 11, true, &r, &e) == ERR_OK);
    CHECK(eng_weights_open("m", true, &weights, &e) == ERR_OK);
    CHECK(eng_scan_open(weights, false, true, &scan, &e) == ERR_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[MEMFILE_PATH];
    eng_difference d;
    int32_t checked, absent;
    err e = { 0 };
    if (!weights) set_up();
    if (size == 0) return 0;
    int fd = memfile(data + 1, size - 1, path);
    err_code rc = data[0] % 2 ? eng_receipt_check(path, weights, &scan, true, &checked, &absent, &d, &e)
                              : eng_manifest_check(path, weights, &scan, &d, &e);
    if (rc != ERR_OK) CHECK((rc == ERR_FORMAT || rc == ERR_INPUT) && e.msg[0] && !strchr(e.msg, '\n'));
    else CHECK(memchr(d.text, 0, sizeof d.text));
    close(fd);
    return 0;
}
