/* Any bytes as what import reads: two bytes of length, a map of names, then a safetensors file. Refused with one line, and
 * nothing of the tape is left; or a whole tape of as many values. */
#include "capture/import.h"

#include <string.h>

#include "formats/tape_reader.h"

#include "memfile.h"
#include "workplace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char OUT[] = "out.tape", PART[] = "out.tape.part";

static void check_tape(const cap_import_result *r)
{
    fmt_tape *t;
    err e = { 0 };
    CHECK(fmt_tape_open(OUT, &t, &e) == ERR_OK && fmt_tape_count(t) == r->n_values);
    fmt_tape_close(t);
    CHECK(unlink(OUT) == 0);
}

static void import(const char *path, const json_t *map)
{
    fmt_safetensors *f;
    cap_import_result r;
    err e = { 0 };
    if (fmt_safetensors_open(path, &f, &e) != ERR_OK) return;
    const cap_import_options o = { map, NULL, true };
    err_code rc = cap_import(f, OUT, &o, &r, &e);
    if (rc == ERR_OK) check_tape(&r);
    else CHECK(err_exit_status(rc) == 3 && e.msg[0] && !strchr(e.msg, '\n') && access(OUT, F_OK) != 0);
    CHECK(access(PART, F_OK) != 0);
    fmt_safetensors_close(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool is_set_up;
    char path[MEMFILE_PATH];
    json_t *map = NULL;
    err e;
    if (!is_set_up) workplace_enter();
    is_set_up = true;
    if (size < 2) return 0;
    size_t map_bytes = get_u16(data);
    data += 2;
    size -= 2;
    if (map_bytes > size) map_bytes = size;
    int fd = memfile(data, map_bytes, path);
    if (map_bytes && fmt_json_read(path, 1 << 20, &map, &e) != ERR_OK) map = NULL;
    close(fd);
    fd = memfile(data + map_bytes, size - map_bytes, path);
    if (!map || json_is_object(map)) import(path, map);
    close(fd);
    json_decref(map);
    return 0;
}
