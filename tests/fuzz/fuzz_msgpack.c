/* Any bytes as msgpack: refused with one line, or a value that packs and comes back equal. */
#include <string.h>

#include "formats/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *v, *back;
    err e = { 0 };
    err_code rc = fmt_msgpack_unpack(data, size, &v, &e);
    CHECK((rc == ERR_OK) == (v != NULL));
    CHECK(rc == ERR_OK || (rc == ERR_FORMAT && strstr(e.msg, "msgpack: byte ") && !strchr(e.msg, '\n')));
    if (!v) return 0;
    uint8_t *packed;
    size_t bytes;
    CHECK(fmt_msgpack_pack(v, &packed, &bytes, &e) == ERR_OK);
    CHECK(fmt_msgpack_unpack(packed, bytes, &back, &e) == ERR_OK && json_equal(v, back));
    free(packed);
    json_decref(back);
    json_decref(v);
    return 0;
}
