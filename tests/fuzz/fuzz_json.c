/* Any bytes as a JSON file: refused with one line, or a value that survives msgpack when it is not too deep. */
#include "formats/json.h"

#include <string.h>

#include "memfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Whether any text in it, or key, holds a character that a terminal obeys. */
static bool has_control(const json_t *v)
{
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT); /* which writes those below a blank as \uXXXX, \b, \f, \r */
    bool found = !text;
    for (const char *s = text; s && *s; s++)
        found = found || *s == 0x7f || (s[0] == '\\' && strchr("ubfr", s[1])) ||
                ((uint8_t)s[0] == 0xc2 && (uint8_t)s[1] < 0xa0);
    free(text);
    return found;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[MEMFILE_PATH];
    int fd = memfile(data, size, path);
    json_t *v, *back;
    err e = { 0 };
    err_code rc = fmt_json_read(path, 1 << 20, &v, &e);
    CHECK((rc == ERR_OK) == (v != NULL));
    CHECK(rc == ERR_OK || (rc == ERR_FORMAT && strstr(e.msg, path) && !strchr(e.msg, '\n')));
    uint8_t *packed = NULL;
    size_t bytes;
    if (v && fmt_msgpack_pack(v, &packed, &bytes, &e) == ERR_OK) {
        CHECK(fmt_msgpack_unpack(packed, bytes, &back, &e) == ERR_OK);
        CHECK(has_control(v) || json_equal(v, back)); /* which would come back as '?' */
        json_decref(back);
    }
    free(packed);
    json_decref(v);
    close(fd);
    return 0;
}
