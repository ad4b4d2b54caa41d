/* Any bytes as a safetensors file: refused with one line, or opened with every span inside the file. */
#include "formats/safetensors.h"
#include "formats/tape.h"

#include <string.h>

#include "memfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[MEMFILE_PATH];
    int fd = memfile(data, size, path);
    fmt_safetensors *f;
    err e = { 0 };
    err_code rc = fmt_safetensors_open(path, &f, &e);
    CHECK((rc == ERR_OK) == (f != NULL));
    CHECK(rc == ERR_OK || (rc == ERR_FORMAT && strstr(e.msg, path) && !strchr(e.msg, '\n')));
    for (size_t i = 0; f && i < fmt_safetensors_count(f); i++) {
        const fmt_safetensors_entry *x = fmt_safetensors_at(f, i);
        fmt_stats stats;
        char text[64];
        CHECK(x->offset <= size && x->bytes <= size - x->offset && fmt_tensor_bytes(&x->tensor) == x->bytes);
        CHECK(fmt_safetensors_find(f, x->name) == x);
        fmt_stats_of(&x->tensor, &stats); /* reads every byte */
        fmt_tensor_text(&x->tensor, text, sizeof text);
    }
    fmt_safetensors_close(f);
    close(fd);
    return 0;
}
