/* Any bytes as a JSON file: refused with one line, or a value that survives msgpack when it is not too deep. */
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "formats/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    json_t *v, *back;
    err e = { 0 };
    err_code rc = fmt_json_read(path, 1 << 20, &v, &e);
    CHECK((rc == ERR_OK) == (v != NULL));
    CHECK(rc == ERR_OK || (rc == ERR_FORMAT && strstr(e.msg, path) && !strchr(e.msg, '\n')));
    uint8_t *packed = NULL;
    size_t bytes;
    if (v && fmt_msgpack_pack(v, &packed, &bytes, &e) == ERR_OK) {
        CHECK(fmt_msgpack_unpack(packed, bytes, &back, &e) == ERR_OK && json_equal(v, back));
        json_decref(back);
    }
    free(packed);
    json_decref(v);
    close(fd);
    return 0;
}
