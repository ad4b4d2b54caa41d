/* dispatch.json: whatever the bytes are, the file is refused in one line, or gives a table of variants that there are. */
#include "engine/dispatch.h"

#include <string.h>

#include "memfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const eng_dispatch plain = eng_dispatch_default();
    char path[MEMFILE_PATH], note[ERR_MSG_BYTES];
    eng_dispatch d;
    err e = { 0 };
    const int fd = memfile(data, size, path);
    const err_code rc = eng_dispatch_read(path, "NVIDIA H200, sm_90", &d, note, &e);
    close(fd);
    if (rc != ERR_OK) {
        CHECK((rc == ERR_INPUT || rc == ERR_FORMAT) && e.msg[0] && !strchr(e.msg, '\n'));
        CHECK(memcmp(&d, &plain, sizeof d) == 0 && !note[0]);
        return 0;
    }
    CHECK(!strchr(note, '\n') && (!note[0] || memcmp(&d, &plain, sizeof d) == 0));
    for (int32_t stage = -1; stage <= ENG_STAGES_MAX; stage++)
        for (int32_t rows = 0; rows <= ENG_DISPATCH_ROWS + 1; rows++)
            CHECK(eng_dispatch_variant(&d, stage, rows) < ENG_VARIANTS);
    return 0;
}
